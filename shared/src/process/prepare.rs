//! The configuration of a service, read and checked as a whole before it starts.

use std::path::PathBuf;
use std::sync::Arc;

use super::config::{CommonConfig, ConfigDocument, ConfigEnvironment, ConfigFault, Edges, LoadedSection, edge_faults};
use super::shell::Service;
use crate::clock::{IdSource as _, SystemIds};
use crate::llm::LlmConfig;
use crate::wire::seal::TrustKeys;

/// A service's complete configuration, read and checked.
#[derive(Debug)]
pub struct PreparedService<C> {
    /// Value of the service's own section.
    pub config: C,
    /// Values of the shared sections.
    pub common: CommonConfig,
    /// Section `[llm]`, if the service uses models.
    pub llm: LlmConfig,
    /// Keys with which events are sealed and checked.
    pub trust: Arc<TrustKeys>,
    /// Instance name of this replica.
    pub instance: String,
    /// Directory in which running processes announce themselves.
    pub run_dir: Option<PathBuf>,
    /// Log filter that overrides the configured level.
    pub log: Option<String>,
}

/// Checks the section of `S` alone, for the command line. Returns its values with secrets as references, and its
/// faults.
#[must_use]
pub fn inspect_section<S: Service>(document: &ConfigDocument) -> (toml::Value, Vec<ConfigFault>) {
    let loaded = service_section::<S>(document, &llm_section::<S>(document).value);
    (loaded.shown_values(), loaded.faults)
}

/// Reads section `[llm]`, or its defaults if `S` uses no models.
fn llm_section<S: Service>(document: &ConfigDocument) -> LoadedSection<LlmConfig> {
    if S::ASKS_MODELS {
        return document.section("llm", LlmConfig::find_faults);
    }
    LoadedSection {
        value: LlmConfig::default(),
        faults: Vec::new(),
    }
}

/// Reads the section of `S`, and checks it by itself, with `llm`, and with the channels of the edges.
fn service_section<S: Service>(document: &ConfigDocument, llm: &LlmConfig) -> LoadedSection<S::Config> {
    let channel = |edge: &toml::Value| Some(edge.get("channel")?.as_str()?.to_owned());
    let edges = document.value("edges");
    let edges = edges
        .iter()
        .filter_map(|(name, edge)| Some((name.clone(), channel(edge)?)));
    let channels = edges.collect();

    document.section(S::SECTION, |config| {
        let mut faults = S::check(config);
        faults.extend(S::check_beside(config, &channels));
        if S::ASKS_MODELS {
            faults.extend(S::check_models(config, llm));
        }
        faults
    })
}

/// Returns everything that `S` needs before it starts.
///
/// # Errors
/// Returns every fault of all sections, of the files that they name, and of the environment.
pub fn prepare_service<S: Service>(
    document: &ConfigDocument,
    environment: &ConfigEnvironment,
) -> Result<PreparedService<S::Config>, Vec<ConfigFault>> {
    // All sections are read, so that one start reports every fault.
    let (common, common_faults) = CommonConfig::load(document);
    let llm = llm_section::<S>(document);
    let own = service_section::<S>(document, &llm.value);

    let edges = if S::READS_EDGES {
        document.section("edges", edge_faults)
    } else {
        LoadedSection {
            value: Edges::new(),
            faults: Vec::new(),
        }
    };

    let files = S::check_files(&own.value, &common, &llm.value);
    let mut faults = [
        document.faults().to_vec(),
        common_faults,
        own.faults,
        llm.faults,
        edges.faults,
        files,
    ]
    .concat();

    let instance = environment
        .instance()
        .map_or_else(|| new_instance(environment.host_name()), str::to_owned);
    // The name becomes part of subjects, keys and file names.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if instance.len() > 64 || !instance.bytes().all(plain) {
        let problem = "expected at most 64 letters, digits, `-` and `_`".to_owned();
        faults.push(ConfigFault {
            source: "NEXUS_INSTANCE".to_owned(),
            key: String::new(),
            problem,
        });
    }

    if !faults.is_empty() {
        return Err(faults);
    }

    let (run_dir, log) = (environment.run_dir(), environment.log_filter().map(str::to_owned));
    let trust = Arc::new(common.trust.build_trust(&edges.value));

    Ok(PreparedService {
        config: own.value,
        trust,
        common,
        llm: llm.value,
        instance,
        run_dir,
        log,
    })
}

/// Builds an instance name from the host, the process id and a few random characters, unique without coordination.
fn new_instance(host: Option<&str>) -> String {
    let short: String = host
        .unwrap_or("local")
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(24)
        .collect();
    let ulid = SystemIds.ulid().to_string().to_ascii_lowercase();
    format!("{short}-{}-{}", std::process::id(), &ulid[ulid.len() - 6..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_instances_differ_and_fit_a_file_name() {
        let (one, other) = (new_instance(Some("host.example")), new_instance(None));
        assert_ne!(one, other);
        assert!(one.starts_with("hostexample-"), "{one}");
    }
}
