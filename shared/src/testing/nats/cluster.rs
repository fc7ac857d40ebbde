//! Several servers that replicate to each other.

use super::{NatsOptions, NatsServer};
use crate::process::free_port;

/// A cluster of servers on loopback; its streams may have as many replicas as there are servers.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts `size` servers with the defaults and waits until all are ready.
    pub async fn start(size: usize) -> Self {
        Self::with(size, &NatsOptions::default()).await
    }

    /// Starts `size` servers with `options` and waits until all are ready.
    pub async fn with(size: usize, options: &NatsOptions) -> Self {
        // Routes contain the ports of all servers, so all ports are chosen before the first server starts.
        let ports: Vec<u16> = (0..size * 3).map(|_| free_port().expect("a free port")).collect();
        let routes: Vec<String> = ports
            .chunks(3)
            .map(|own| format!("\"nats://127.0.0.1:{}\"", own[2]))
            .collect();

        let mut servers = Vec::new();
        for (index, own) in ports.chunks(3).enumerate() {
            let cluster = format!(
                "{}\ncluster {{ name: nexus-test, listen: \"127.0.0.1:{}\", routes: [{}] }}",
                options.extra,
                own[2],
                routes.join(", "),
            );

            let name = format!("n{}", index + 1);
            let mut server = NatsServer::prepare(
                &name,
                NatsOptions {
                    extra: cluster,
                    ..options.clone()
                },
            );

            (server.client_port, server.monitor_port) = (own[0], own[1]);
            server.launch();
            servers.push(server);
        }

        for server in &mut servers {
            server.ready().await;
        }

        Self { servers }
    }

    /// URLs of all servers, in order.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(NatsServer::url).collect()
    }

    /// Servers, to kill and restart one at a time.
    #[must_use]
    pub fn servers(&mut self) -> &mut [NatsServer] {
        &mut self.servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_survives_the_loss_of_one_server() {
        let mut cluster = NatsCluster::start(3).await;
        assert_eq!(cluster.urls().len(), 3);
        let lost = &mut cluster.servers()[0];
        lost.kill9();
        lost.restart().await;
    }
}
