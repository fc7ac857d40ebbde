//! One rich answer as each platform gets it.

use delivery_svc::markdown::{RenderedPart, TextMarkup, render_parts};

use crate::corpus::RICH;

#[track_caller]
fn check(markup: TextMarkup, expected: &str) -> RenderedPart {
    let mut parts = render_parts(RICH, markup, markup.own_limit(), None);
    assert_eq!(parts.len(), 1);
    // The character without width is shown, so that the expectation can be read.
    assert_eq!(parts[0].text.trim_end().replace('\u{200b}', "·"), expected);
    parts.remove(0)
}

const PLAIN: &str = r#"Release 2.4 is out

Deployed two services to production; see the run log (https://ci.example/run?a=1&b=2) or
https://status.example/x_(2)_y.

3. Stop worker, which must not take jobs:
   systemctl stop worker && echo "done <1>"
4. Wait for <b>drain</b> & check a < b
   - queue empty
   - nobody pinged by @everyone, <@U123> or <!channel>
5. Done maybe

> Quoted text
> second line
>
> > deeper

Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25

☑ tests
☐ docs (docs/x.md)

Names

snake_case_name, 2*3, *literal* and code_span. 日本語 👨‍👩‍👧

———

Bye"#;

#[test]
fn plain() {
    let part = check(TextMarkup::Plain, PLAIN);
    assert_eq!(part.plain, part.text);
}

#[test]
fn slack() {
    let part = check(
        TextMarkup::Slack,
        r#"*Release 2.4 is out*

Deployed *two services* to _production_; see the <https://ci.example/run?a=1&amp;b=2|run log> or
<https://status.example/x_(2)_y>.

3. Stop `worker`, which _*must not*_ take jobs:
```
systemctl stop worker &amp;&amp; echo "done &lt;1&gt;"
```
4. Wait for &lt;b&gt;drain&lt;/b&gt; &amp; check `a &lt; b`
   • queue _empty_
   • nobody pinged by @everyone, &lt;@U123&gt; or &lt;!channel&gt;
5. Done ~maybe~

> Quoted *text*
> second line
>
> deeper

```
Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25
```

☑ tests
☐ docs (docs/x.md)

*Names*

snake_case_name, 2*3, *·literal·* and `code_span`. 日本語 👨‍👩‍👧

———

Bye"#,
    );
    assert_eq!(part.plain, PLAIN.replace("- ", "• "));
}

#[test]
fn discord() {
    let part = check(
        TextMarkup::Discord,
        r#"# Release 2.4 is out

Deployed **two services** to _production_; see the [run log](https://ci.example/run?a=1&b=2) or
<https://status.example/x_(2)_y>.

3. Stop `worker`, which _**must not**_ take jobs:
```sh
systemctl stop worker && echo "done <1>"
```
4. Wait for \<b>drain\</b> & check `a < b`
   - queue _empty_
   - nobody pinged by @·everyone, \<@U123> or \<!channel>
5. Done ~~maybe~~

> Quoted **text**
> second line
>
> deeper

```
Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25
```

☑ tests
☐ docs (docs/x.md)

## Names

snake_case_name, 2\*3, \*literal\* and `code_span`. 日本語 👨‍👩‍👧

———

Bye"#,
    );
    assert_eq!(part.plain, PLAIN);
}

#[test]
fn telegram() {
    let part = check(
        TextMarkup::TelegramHtml,
        r#"<b>Release 2.4 is out</b>

Deployed <b>two services</b> to <i>production</i>; see the <a href="https://ci.example/run?a=1&amp;b=2">run log</a> or
https://status.example/x_(2)_y.

3. Stop <code>worker</code>, which <i><b>must not</b></i> take jobs:
<pre><code class="language-sh">systemctl stop worker &amp;&amp; echo "done &lt;1&gt;"</code></pre>
4. Wait for &lt;b&gt;drain&lt;/b&gt; &amp; check <code>a &lt; b</code>
   • queue <i>empty</i>
   • nobody pinged by @everyone, &lt;@U123&gt; or &lt;!channel&gt;
5. Done <s>maybe</s>

<blockquote>Quoted <b>text</b>
second line

deeper</blockquote>

<pre>Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25</pre>

☑ tests
☐ docs (docs/x.md)

<b>Names</b>

snake_case_name, 2*3, *literal* and <code>code_span</code>. 日本語 👨‍👩‍👧

———

Bye"#,
    );
    assert_eq!(part.plain, PLAIN.replace("- ", "• "));
}

#[test]
fn whatsapp() {
    let part = check(
        TextMarkup::Whatsapp,
        r#"*Release 2.4 is out*

Deployed *two services* to _production_; see the run log (https://ci.example/run?a=1&b=2) or
https://status.example/x_(2)_y.

3. Stop `worker`, which _*must not*_ take jobs:
```
systemctl stop worker && echo "done <1>"
```
4. Wait for <b>drain</b> & check `a < b`
   • queue _empty_
   • nobody pinged by @everyone, <@U123> or <!channel>
5. Done ~maybe~

> Quoted *text*
> second line
>
> deeper

```
Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25
```

☑ tests
☐ docs (docs/x.md)

*Names*

snake_case_name, 2*3, *·literal·* and `code_span`. 日本語 👨‍👩‍👧

———

Bye"#,
    );
    assert_eq!(part.plain, PLAIN.replace("- ", "• "));
}

#[test]
fn signal() {
    let part = check(TextMarkup::Signal, &PLAIN.replace("- ", "• "));
    assert_eq!(part.plain, part.text);

    let units: Vec<u16> = part.text.encode_utf16().collect();
    let styled = part.styles.iter().map(|range| {
        let text = String::from_utf16(&units[range.start..range.start + range.length]).expect("whole characters");
        format!("{}: {}", range.style, text.lines().next().unwrap_or_default())
    });
    assert_eq!(
        styled.collect::<Vec<_>>(),
        [
            "BOLD: Release 2.4 is out",
            "BOLD: two services",
            "ITALIC: production",
            "MONOSPACE: worker",
            "BOLD: must not",
            "ITALIC: must not",
            "MONOSPACE: systemctl stop worker && echo \"done <1>\"",
            "MONOSPACE: a < b",
            "ITALIC: empty",
            "STRIKETHROUGH: maybe",
            "BOLD: text",
            "MONOSPACE: Service | Version |  Load",
            "BOLD: Names",
            "MONOSPACE: code_span",
        ]
    );
}

#[test]
fn email() {
    let part = check(
        TextMarkup::EmailHtml,
        r#"<h1>Release 2.4 is out</h1>
<p>Deployed <b>two services</b> to <i>production</i>; see the <a href="https://ci.example/run?a=1&amp;b=2">run log</a> or<br>
<a href="https://status.example/x_(2)_y">https://status.example/x_(2)_y</a>.</p>
<ol start="3">
<li>Stop <code>worker</code>, which <i><b>must not</b></i> take jobs:<pre><code class="language-sh">systemctl stop worker &amp;&amp; echo "done &lt;1&gt;"</code></pre>
</li>
<li>Wait for &lt;b&gt;drain&lt;/b&gt; &amp; check <code>a &lt; b</code><ul>
<li>queue <i>empty</i></li>
<li>nobody pinged by @everyone, &lt;@U123&gt; or &lt;!channel&gt;</li>
</ul>
</li>
<li>Done <s>maybe</s></li>
</ol>
<blockquote>
<p>Quoted <b>text</b><br>
second line</p>
<blockquote>
<p>deeper</p>
</blockquote>
</blockquote>
<pre><code>Service | Version |  Load
--------+---------+------
api     |  2.4.0  |   0.5
worker  |  2.4.1  | 12.25</code></pre>
<ul>
<li>☑ tests</li>
<li>☐ docs (docs/x.md)</li>
</ul>
<h2>Names</h2>
<p>snake_case_name, 2*3, *literal* and <code>code_span</code>. 日本語 👨‍👩‍👧</p>
<hr>
<p>Bye</p>"#,
    );
    assert_eq!(part.plain, PLAIN);
}
