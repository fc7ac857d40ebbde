//! A real browser: headless Chromium through chromedriver, spoken to in the W3C WebDriver protocol.
//!
//! A handful of commands of the protocol is all that the stories need. Source: <https://www.w3.org/TR/webdriver2/>.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::eventually::eventually;

/// How long the driver and the browser may take to start on a busy machine.
const START: Duration = Duration::from_secs(60);
/// The key under which the protocol names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// An open browser window. Driver and browser end with it.
#[derive(Debug)]
pub struct Browser {
    client: reqwest::Client,
    session: String,
    driver: Child,
    profile: TempDir,
}

/// Where `name` is on the PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver is looked for where the shell looks for it"
    )]
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// What the browser is started with: nothing that leaves this machine, a profile of its own.
fn capabilities(browser: &std::path::Path, profile: &std::path::Path) -> Value {
    let profile = format!("--user-data-dir={}", profile.display());
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        &profile,
    ];

    json!({ "capabilities": { "alwaysMatch": {
        "browserName": "chrome",
        "goog:chromeOptions": { "binary": browser, "args": flags },
    } } })
}

impl Browser {
    /// Opens a window; none where no chromedriver or no Chromium is installed.
    ///
    /// # Panics
    /// Where they are there and do not start.
    pub async fn open() -> Option<Self> {
        let driver = on_path("chromedriver")?;
        let browser = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find_map(on_path)?;
        let profile = tempfile::Builder::new()
            .prefix("nexus-browser-")
            .tempdir()
            .expect("a temporary directory");

        let port = shared::process::free_port().expect("a free port");
        let mut command = Command::new(driver);
        command
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());

        let driver = command.kill_on_drop(true).spawn().expect("chromedriver starts");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let base = format!("http://127.0.0.1:{port}");

        eventually("chromedriver", START, async || {
            client
                .get(format!("{base}/status"))
                .send()
                .await
                .map_err(|error| error.to_string())
        })
        .await;

        let asked = client
            .post(format!("{base}/session"))
            .json(&capabilities(&browser, profile.path()))
            .timeout(START);
        let answer: Value = asked.send().await.expect("an answer").json().await.expect("JSON");
        let id = answer["value"]["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("no browser: {answer}"));
        let session = format!("{base}/session/{id}");

        Some(Self {
            client,
            session,
            driver,
            profile,
        })
    }

    async fn command(&self, path: &str, body: &Value) -> Result<Value, String> {
        let asked = self
            .client
            .post(format!("{}/{path}", self.session))
            .json(body)
            .timeout(START);
        let answer = asked.send().await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
            None => Ok(answer["value"].clone()),
        }
    }

    /// Opens `url`, or again.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn go(&self, url: &str) -> Result<(), String> {
        self.command("url", &json!({ "url": url })).await.map(|_| ())
    }

    async fn find(&self, selector: &str) -> Result<String, String> {
        let found = self
            .command("element", &json!({ "using": "css selector", "value": selector }))
            .await?;
        found[ELEMENT]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{selector}: {found}"))
    }

    /// Types `text` into the element that `selector` finds.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn write(&self, selector: &str, text: &str) -> Result<(), String> {
        let element = self.find(selector).await?;
        self.command(&format!("element/{element}/value"), &json!({ "text": text }))
            .await
            .map(|_| ())
    }

    /// Clicks on it.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn click(&self, selector: &str) -> Result<(), String> {
        let element = self.find(selector).await?;
        self.command(&format!("element/{element}/click"), &json!({}))
            .await
            .map(|_| ())
    }

    /// The first text node of every element that `selector` finds.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn texts(&self, selector: &str) -> Result<Vec<String>, String> {
        let script = "return [...document.querySelectorAll(arguments[0])].map(e => e.firstChild?.textContent ?? '')";
        let found = self
            .command("execute/sync", &json!({ "script": script, "args": [selector] }))
            .await?;
        serde_json::from_value(found).map_err(|error| error.to_string())
    }

    /// What `script` returns.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn run(&self, script: &str) -> Result<Value, String> {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
            .await
    }

    /// Makes the page as large as a screen of `width` by `height`.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn resize(&self, width: u32, height: u32) -> Result<(), String> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        let order = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": size });
        self.command("goog/cdp/execute", &order).await.map(|_| ())
    }

    /// Shows the page in the colours that a person with a `dark` screen has, or in light ones.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn darken(&self, dark: bool) -> Result<(), String> {
        let value = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        let order = json!({ "cmd": "Emulation.setEmulatedMedia", "params": features });
        self.command("goog/cdp/execute", &order).await.map(|_| ())
    }

    /// Presses `keys` on whatever has the focus; WebDriver writes keys that are no letters as characters from U+E000 on.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn press(&self, keys: &str) -> Result<(), String> {
        let each = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() })));
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": each.collect::<Vec<_>>() }] });
        self.command("actions", &actions).await.map(|_| ())
    }

    /// Makes the page as large as a screen of `width` by `height`, and writes what it shows to `{name}.png` in the folder
    /// that `NEXUS_SCREENSHOTS` names; nothing if it names none.
    ///
    /// # Errors
    /// What the driver or the folder says.
    pub async fn picture(&self, name: &str, width: u32, height: u32) -> Result<(), String> {
        #[expect(clippy::disallowed_methods, reason = "who wants to look at the page says where")]
        let Some(folder) = std::env::var_os("NEXUS_SCREENSHOTS").map(PathBuf::from) else {
            return Ok(());
        };

        self.resize(width, height).await?;

        let shot = json!({ "cmd": "Page.captureScreenshot", "params": {} });
        let taken = self.command("goog/cdp/execute", &shot).await?;
        let data = taken["data"].as_str().ok_or("no picture")?;
        let bytes = BASE64.decode(data).map_err(|error| error.to_string())?;
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;

        std::fs::write(folder.join(format!("{name}.png")), bytes).map_err(|error| error.to_string())
    }

    /// Ends browser and driver.
    pub async fn close(mut self) {
        // Either answers, or is killed below; the profile goes with it.
        let _ = self.client.delete(&self.session).timeout(START).send().await;
        let _ = self.driver.kill().await;
        let _ = self.profile.close();
    }
}
