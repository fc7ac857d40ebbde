//! `nexus auth`: the users of the bus, their keys and credentials.

pub mod certificates;
pub mod folder;
mod push;
pub mod registry;
pub mod server_files;

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use shared::bus::NatsConfig;
use shared::clock::{Clock as _, SystemClock};
use shared::model::time::UnixMillis;
use shared::wire::rights::BusRole;

use self::folder::{AuthFolder, STANDARD, credentials_path};
use self::push::ask_servers;
pub use self::push::push_accounts;
use self::registry::{FileSettings, NewExpiry, UserRecord, WantedUser};
use crate::args::{AddUser, AuthAction, Common, InitAuth};
use crate::complain;
use crate::connect::nats_config;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::launch::keys::write_secret;
use crate::output::{Column, Table, View, reader_zone};
use crate::when::parse_span;

/// Port of the servers' routes.
const ROUTE_PORT: u16 = 6222;

/// Returns the time in seconds since 1970, as tokens have it.
#[must_use]
pub fn seconds_now() -> i64 {
    SystemClock.now().0 / 1_000
}

/// Runs the command.
///
/// # Errors
/// Fails if a file cannot be read or written, if a user cannot be changed as asked, or if the servers refuse.
pub async fn execute(common: &Common, action: AuthAction) -> Result<()> {
    let now = seconds_now();
    match action {
        AuthAction::Init(init) => init_folder(common, &init, now).await,
        AuthAction::Add(user) => add_user(common, user, now),
        AuthAction::Rotate(user) => {
            let mut folder = AuthFolder::open(&user.change.files.dir, false)?;
            if !user.change.offline {
                // A copy of the folder that is behind must give no new key to a refused user.
                let config = server_config(common, folder.path())?;
                ask_servers(&mut folder, &config, now).await?;
            }
            let expires = match user.expires.as_deref() {
                Some("never") => NewExpiry::Never,
                text => expiry(text, now)?.map_or(NewExpiry::AsBefore, NewExpiry::At),
            };
            folder.rotate(&user.name, now, expires)?;
            if user.revoke_former {
                folder.revoke_retired(&user.name, now)?;
            }
            finish(common, &mut folder, &user.name, now, user.change.offline).await
        }
        AuthAction::Revoke(user) => {
            let mut folder = AuthFolder::open(&user.change.files.dir, false)?;
            if !user.former {
                folder.revoke(&user.name, now)?;
            } else if !folder.revoke_retired(&user.name, now)? && (user.change.offline || !folder.registry().unpushed) {
                let text = format!("user `{}` has no former key", user.name);
                return Err(failure(Exit::NotFound, text));
            }
            finish(common, &mut folder, &user.name, now, user.change.offline).await
        }
        AuthAction::List(files) => list_users(common, &AuthFolder::open(&files.dir, false)?, now),
        AuthAction::Show(user) => show_user(common, &AuthFolder::open(&user.files.dir, false)?, &user.name, now),
    }
}

fn add_user(common: &Common, user: AddUser, now: i64) -> Result<()> {
    let wanted = WantedUser {
        name: user.name.clone(),
        role: parse_role(&user.role)?,
        channel: user.channel,
        personas: user.persona,
        expires: expiry(user.expires.as_deref(), now)?,
    };
    let mut folder = AuthFolder::open(&user.files.dir, false)?;
    folder.add(wanted, now)?;
    write_files(&mut folder, now)?;
    show_user(common, &folder, &user.name, now)
}

/// Writes the files that follow from a change, tells the servers, and shows the user.
async fn finish(common: &Common, folder: &mut AuthFolder, name: &str, now: i64, is_offline: bool) -> Result<()> {
    write_files(folder, now)?;
    if !is_offline {
        push_changes(common, folder, now).await?;
    }
    show_user(common, folder, name, now)
}

/// Tells the servers the accounts if one has changed since they were told. A failure is made up for by the next command.
async fn push_changes(common: &Common, folder: &mut AuthFolder, now: i64) -> Result<()> {
    if folder.registry().unpushed {
        push_accounts(folder, &server_config(common, folder.path())?, now).await?;
        // What the servers knew and the folder did not is in the files from now on.
        write_files(folder, now)?;
        folder.note_pushed()?;
    }
    Ok(())
}

/// Returns how the servers are reached, with the authority of the folder if the configuration names none.
fn server_config(common: &Common, dir: &Path) -> Result<NatsConfig> {
    let mut config = nats_config(common)?;
    let authority = dir.join("tls/ca.pem");
    if config.ca.is_empty() && authority.is_file() {
        config.ca = authority.display().to_string();
    }
    Ok(config)
}

fn parse_role(name: &str) -> Result<BusRole> {
    BusRole::parse(name).ok_or_else(|| {
        let known: Vec<&str> = BusRole::ALL.iter().map(|role| role.name()).collect();
        failure(Exit::Usage, format!("--role `{name}`: expected {}", known.join(", ")))
    })
}

/// Returns the time at which a user expires that is made at `now`, in seconds since 1970.
fn expiry(text: Option<&str>, now: i64) -> Result<Option<i64>> {
    let span = text.map(|text| parse_span("--expires", text)).transpose()?;
    Ok(span.map(|millis| now + millis.div_euclid(1_000)))
}

async fn init_folder(common: &Common, init: &InitAuth, now: i64) -> Result<()> {
    let (dir, offline) = (init.change.files.dir.as_path(), init.change.offline);
    let mut folder = AuthFolder::open(dir, true)?;
    folder.complete(now)?;
    // A setting that is not named stays as it was.
    let known = folder.registry().files.clone();
    let files = FileSettings {
        hosts: if init.host.is_empty() {
            known.hosts
        } else {
            init.host.clone()
        },
        etc: init.etc.clone().unwrap_or(known.etc),
        namespace: init.namespace.clone().unwrap_or(known.namespace),
    };
    if !files.hosts.is_empty() {
        certificates::ensure(&mut folder, &files.hosts, now)?;
    }
    folder.set_files(files)?;
    write_files(&mut folder, now)?;

    if !offline {
        push_changes(common, &mut folder, now).await?;
    }
    if folder.registry().certificates.is_none() {
        complain!("no certificates: name the servers with --host to encrypt connections and routes");
    }

    let users: Vec<&str> = STANDARD.iter().map(|role| role.name()).collect();
    let (server, secrets) = (dir.join("server"), dir.join("secrets.yaml"));
    View::one(
        dir.display().to_string(),
        &json!({"dir": dir, "users": users, "server": server, "secrets": secrets}),
    )?
    .fields([
        ("users", users.join(", ").into()),
        ("credentials", dir.join("users").display().to_string().into()),
        ("for the servers", server.display().to_string().into()),
        ("for Kubernetes", secrets.display().to_string().into()),
    ])
    .show(common)
}

/// Writes the files for the servers and for Kubernetes.
fn write_files(folder: &mut AuthFolder, now: i64) -> Result<()> {
    folder.complete(now)?;
    let settings = folder.registry().files.clone();
    let dir = folder.path().to_owned();
    let read = |name: &str| {
        let path = dir.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    };

    let mut server = vec![("accounts.conf", folder.server_section()?)];
    let mut tls = String::new();
    if folder.registry().certificates.is_some() {
        tls = server_files::tls_block(&settings.etc, true);
        server.push(("tls.conf", server_files::tls_block(&settings.etc, false)));
        for name in ["ca.pem", "server.pem", "server.key"] {
            server.push((name, read(&format!("tls/{name}"))?));
        }
    } else {
        server.push((
            "tls.conf",
            "# no certificates: nexus auth init --host HOST\n".to_owned(),
        ));
    }
    let hosts = settings
        .hosts
        .iter()
        .map(|host| server_files::host_and_port(host, ROUTE_PORT));
    let routes = server_files::route_lines(&folder.route_password()?, &hosts.collect::<Vec<_>>(), &tls);
    server.push(("routes.conf", routes));

    std::fs::create_dir_all(dir.join("server")).context("failed to create the directory of the servers' files")?;
    for (name, text) in &server {
        let path = dir.join("server").join(name);
        write_secret(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }

    let mut documents = vec![server_files::secret(&settings.namespace, "nexus-nats-server", &server)];
    for (name, user) in folder.registry().users.iter().filter(|(_, user)| !user.revoked) {
        // A file that was moved to where it is used is not for the cluster.
        if !credentials_path(&dir, name).exists() {
            continue;
        }
        let mut files = vec![("user.creds", read(&format!("users/{name}.creds"))?)];
        if folder.registry().certificates.is_some() {
            files.push(("ca.pem", read("tls/ca.pem")?));
        }
        // The credentials that make users stay in the folder.
        if user.role != BusRole::System {
            documents.push(server_files::secret(
                &settings.namespace,
                &format!("nexus-nats-{name}"),
                &files,
            ));
        }
    }
    write_secret(&dir.join("secrets.yaml"), &documents.join("---\n")).context("failed to write secrets.yaml")
}

fn seconds(at: i64) -> UnixMillis {
    UnixMillis(at.saturating_mul(1_000))
}

fn list_users(common: &Common, folder: &AuthFolder, now: i64) -> Result<()> {
    let users: Vec<(&String, &UserRecord)> = folder.registry().users.iter().collect();
    let items: Vec<_> = users.iter().map(|(name, user)| user_json(name, user, now)).collect();
    let columns = [
        Column::id("USER"),
        Column::text("ROLE"),
        Column::text("ACCOUNT"),
        Column::text("STATE"),
        Column::time("SINCE"),
        Column::time("EXPIRES"),
        Column::text("KEY").extra(),
    ];
    let table = Table::new(&columns).with(&users, |(name, user)| {
        [
            (*name).into(),
            user.role.name().into(),
            user.role.account().name().into(),
            user.state(now).name().into(),
            seconds(user.issued).into(),
            user.expires.map(seconds).into(),
            (&user.public).into(),
        ]
    });
    View::list(&items, table)?.show(common)?;

    let certificates = folder.registry().certificates.as_ref();
    if let Some(record) = certificates.filter(|record| certificates::is_due(record, now)) {
        let end = reader_zone(common).date(seconds(record.expires));
        complain!(
            "the servers' certificates end on {end}: `nexus auth init` makes new ones; give the servers `server/` then"
        );
    }
    Ok(())
}

fn user_json(name: &str, user: &UserRecord, now: i64) -> serde_json::Value {
    json!({
        "name": name, "role": user.role.name(), "account": user.role.account().name(),
        "state": user.state(now).name(), "issued": seconds(user.issued).0,
        "expires": user.expires.map(|at| seconds(at).0), "channel": user.channel,
        "personas": user.personas, "key": user.public,
    })
}

fn show_user(common: &Common, folder: &AuthFolder, name: &str, now: i64) -> Result<()> {
    let user = folder.registry().user(name).exit(Exit::NotFound)?;
    let (rights, path) = (user.role.subjects(), credentials_path(folder.path(), name));
    let mut item = user_json(name, user, now);
    let personas = (!user.personas.is_empty()).then(|| user.personas.join(" "));
    item["credentials"] = json!(path);
    item["publish"] = json!(rights.publish);
    item["subscribe"] = json!(rights.hear);

    View::one(name, &item)?
        .fields([
            ("user", name.into()),
            ("role", user.role.name().into()),
            ("account", user.role.account().name().into()),
            ("state", user.state(now).name().into()),
            ("since", seconds(user.issued).into()),
            ("expires", user.expires.map(seconds).into()),
            ("channel", user.channel.as_ref().into()),
            ("personas", personas.into()),
            ("credentials", path.display().to_string().into()),
            ("publishes", rights.publish.join(" ").into()),
            ("subscribes", rights.hear.join(" ").into()),
        ])
        .show(common)
}
