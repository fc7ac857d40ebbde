//! `nexus auth` upon a folder, without a server.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use shared::credentials::UserCredentials;
use shared::wire::rights::BusRole;

/// Runs `nexus auth` in `directory`. Returns the exit code, and what it prints.
fn auth(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(["--json", "auth"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().expect("a code"),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn done(directory: &Path, arguments: &[&str]) -> String {
    let (code, text) = auth(directory, arguments);
    assert_eq!(code, 0, "nexus auth {arguments:?}: {text}");
    text
}

fn user(directory: &Path, name: &str) -> UserCredentials {
    let path = directory.join(format!("nexus-auth/users/{name}.creds"));
    let text = std::fs::read_to_string(path).expect("credentials");
    UserCredentials::parse(&text).expect("credentials")
}

/// All files below `directory`.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn what_is_made_is_made_once_and_read_by_its_owner_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let init = ["init", "--host", "nats-0", "--host", "10.0.0.1", "--offline"];
    done(here, &init);

    let made = files(&here.join("nexus-auth"));
    assert!(made.len() > 30, "{made:?}");
    for path in &made {
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }

    let text = |path: &Path| std::fs::read_to_string(path).expect("text");
    let mode = std::fs::metadata(here.join("nexus-auth"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    let before: Vec<String> = made.iter().map(|path| text(path)).collect();
    done(here, &init);
    assert_eq!(made.iter().map(|path| text(path)).collect::<Vec<_>>(), before);

    // What the servers are given makes no users.
    let seeds: Vec<String> = files(&here.join("nexus-auth/keys"))
        .iter()
        .map(|path| text(path))
        .collect();
    let given = format!(
        "{}{}",
        text(&here.join("nexus-auth/secrets.yaml")),
        text(&here.join("nexus-auth/server/accounts.conf"))
    );
    for seed in seeds.iter().filter(|seed| seed.starts_with('S')) {
        assert!(!given.contains(seed.trim()));
    }
    assert!(text(&here.join("nexus-auth/server/routes.conf")).contains("@10.0.0.1:6222"));
    assert!(given.contains("name: nexus-nats-hook\n") && !given.contains("name: nexus-nats-system\n"));
}

#[test]
fn users_are_added_rotated_and_revoked() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let (code, text) = auth(here, &["list"]);
    assert!(code == 3 && text.contains("nexus auth init"), "{text}");
    done(here, &["init", "--offline"]);

    done(here, &["add", "anna", "--role", "operator", "--expires", "30d"]);
    let anna = user(here, "anna");
    assert_eq!(anna.claims().role, Some(BusRole::Operator));
    assert_eq!(
        anna.claims().expires.expect("a time") - anna.claims().issued,
        30 * 86_400
    );

    let former = user(here, "hook").claims().public.clone();
    done(here, &["rotate", "hook"]);
    assert_ne!(user(here, "hook").claims().public, former);
    let shown: Value = serde_json::from_str(&done(here, &["show", "hook"])).expect("JSON");
    assert_eq!(shown["state"], "rotating");
    done(here, &["revoke", "hook", "--former", "--offline"]);
    let (code, text) = auth(here, &["revoke", "hook", "--former", "--offline"]);
    assert!(code == 3 && text.contains("no former key"), "{text}");

    done(here, &["revoke", "anna", "--offline"]);
    let listed: Vec<Value> = serde_json::from_str(&done(here, &["list"])).expect("JSON");
    let state = |name: &str| {
        let found = listed.iter().find(|user| user["name"] == name);
        found.expect("listed")["state"].clone()
    };
    assert_eq!((state("anna"), state("hook")), ("revoked".into(), "active".into()));
    let secrets = std::fs::read_to_string(here.join("nexus-auth/secrets.yaml")).expect("written");
    assert!(!secrets.contains("nexus-nats-anna"));

    for (arguments, wanted, told) in [
        (vec!["add", "Eve", "--role", "viewer"], 5, "is not a user's name"),
        (
            vec!["add", "eve", "--role", "king"],
            2,
            "--role `king`: expected adapter",
        ),
        (
            vec!["add", "eve", "--role", "viewer", "--expires", "soon"],
            2,
            "--expires `soon`",
        ),
        (vec!["add", "mac1", "--role", "edge"], 5, "--channel"),
        (vec!["rotate", "nobody"], 3, "there is no user `nobody`"),
        (vec!["rotate", "anna"], 5, "is revoked"),
        (vec!["revoke", "system", "--offline"], 5, "cannot be revoked"),
        (vec!["show", "nobody"], 3, "there is no user"),
    ] {
        let (code, text) = auth(here, &arguments);
        assert!(code == wanted && text.contains(told), "{arguments:?}: {code} {text}");
    }
}

#[test]
fn a_folder_without_its_first_key_is_not_given_another_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    done(here, &["init", "--offline"]);
    let root = here.join("nexus-auth/keys/root.nk");
    let accounts = here.join("nexus-auth/server/accounts.conf");
    let text = |path: &Path| std::fs::read_to_string(path).expect("text");
    let (key, before) = (text(&root), text(&accounts));
    std::fs::remove_file(&root).expect("removed");

    for arguments in [
        &["list"][..],
        &["init", "--offline"],
        &["rotate", "hook", "--offline"],
        &["add", "vera", "--role", "viewer"],
    ] {
        let (code, said) = auth(here, arguments);
        assert!(
            code == 5 && said.contains("root.nk is missing"),
            "{arguments:?}: {code} {said}"
        );
    }
    assert!(!root.exists());
    assert_eq!(text(&accounts), before);

    std::fs::write(&root, key).expect("put back");
    done(here, &["init", "--offline"]);
    assert_eq!(text(&accounts), before);
}

#[test]
fn a_key_of_a_role_that_was_thrown_away_is_replaced_and_its_users_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    done(here, &["init", "--offline"]);
    done(here, &["add", "vera", "--role", "viewer"]);
    let accounts = || std::fs::read_to_string(here.join("nexus-auth/server/accounts.conf")).expect("text");
    let before = accounts();

    std::fs::remove_file(here.join("nexus-auth/keys/roles/viewer.nk")).expect("removed");
    let said = done(here, &["rotate", "vera", "--offline"]);
    assert!(
        said.contains("viewer.nk was missing") && said.contains("(vera)"),
        "{said}"
    );
    assert_ne!(accounts(), before, "the servers are told");
    let again = done(here, &["rotate", "vera", "--offline"]);
    assert!(!again.contains("was missing"), "{again}");
}

#[test]
fn a_rotation_that_was_killed_on_its_way_is_ended_by_the_next_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    done(here, &["init", "--offline"]);
    let (users, file) = (
        here.join("nexus-auth/users.json"),
        here.join("nexus-auth/users/hook.creds"),
    );
    let text = |path: &Path| std::fs::read_to_string(path).expect("text");
    let record = || serde_json::from_str::<Value>(&text(&users)).expect("JSON");
    let (former, first) = (text(&file), user(here, "hook").claims().public.clone());

    for is_written in [false, true] {
        done(here, &["rotate", "hook", "--offline"]);
        // Killed after its record, before or after the file: in the first case the new key is in no hands.
        let made = user(here, "hook").claims().public.clone();
        let mut killed = record();
        killed["users"]["hook"]["unwritten"] = true.into();
        std::fs::write(&users, killed.to_string()).expect("written");
        if !is_written {
            std::fs::write(&file, &former).expect("written");
        }

        done(here, &["init", "--offline"]);
        let key = user(here, "hook").claims().public.clone();
        assert_eq!(key == made, is_written, "{key}");
        assert_eq!(record()["users"]["hook"]["public"], key.as_str());
        assert_eq!(record()["users"]["hook"]["unwritten"], false);
        let secrets = text(&here.join("nexus-auth/secrets.yaml"));
        assert!(
            !secrets.contains(&BASE64.encode(&former)),
            "the former key is not handed out"
        );

        // The key that services still have can be refused.
        done(here, &["revoke", "hook", "--former", "--offline"]);
        let ended = record();
        let refused = &ended["accounts"]["NEXUS"]["revoked"];
        assert!(
            refused.get(&first).is_some() && refused.get(&key).is_none(),
            "{refused}"
        );
    }
}

#[test]
fn a_folder_without_the_keys_of_several_roles_is_not_given_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    done(here, &["init", "--offline"]);
    let roles = here.join("nexus-auth/keys/roles");
    let elsewhere = here.join("roles");
    std::fs::rename(&roles, &elsewhere).expect("moved");

    for arguments in [&["list"][..], &["init", "--offline"], &["rotate", "hook", "--offline"]] {
        let (code, said) = auth(here, arguments);
        assert!(
            code == 5 && said.contains("keys of several roles are missing"),
            "{arguments:?}: {code} {said}"
        );
    }
    assert!(!roles.join("hook.nk").exists());

    std::fs::remove_dir(&roles).expect("it is empty");
    std::fs::rename(&elsewhere, &roles).expect("put back");
    done(here, &["init", "--offline"]);
}
