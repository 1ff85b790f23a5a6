//! Reads the pages that rustdoc writes, and lists the public items that they describe.

use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// What a page of an item begins with, before the name of the item.
const KINDS: [&str; 8] = [
    "struct", "enum", "union", "trait", "fn", "macro", "constant", "type",
];

/// All public items below a folder of pages, by path, each with its declaration, its methods and what it implements.
pub fn list(folder: &Path, name: &str) -> anyhow::Result<String> {
    let mut items = Vec::new();
    for path in pages(folder)? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let module = path.parent().unwrap_or(folder).strip_prefix(folder)?;
        let module = module.components().fold(name.to_owned(), |all, part| {
            format!("{all}::{}", part.as_os_str().display())
        });
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if file == "index.html" {
            let used = reexports(&text).into_iter();
            items.extend(used.map(|line| (format!("{module}: {line}"), String::new())));
        } else if let Some(item) = item_of(&file).filter(|_| !is_redirect(&text)) {
            let lines = item_lines(&text);
            ensure!(
                !lines.is_empty(),
                "{}: rustdoc writes its pages differently now: adapt xtask/src/api/pages.rs",
                path.display()
            );
            let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
            items.push((format!("{module}::{item}"), lines));
        }
    }
    items.sort();
    let listed = items
        .into_iter()
        .map(|(path, lines)| format!("{path}\n{lines}"));
    Ok(listed.collect())
}

/// All pages in a folder and below it.
fn pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut pages(&path)?);
        } else if path.extension().is_some_and(|it| it == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The name of the item that a page is about.
fn item_of(file: &str) -> Option<&str> {
    let (kind, rest) = file.split_once('.')?;
    let name = rest.strip_suffix(".html")?;
    // Older addresses of macros end in an exclamation mark.
    (KINDS.contains(&kind) && !name.ends_with('!')).then_some(name)
}

/// Whether a page only leads to another one, as that of an item in a private module does.
fn is_redirect(page: &str) -> bool {
    page.contains("<meta http-equiv=\"refresh\"")
}

/// What a module takes from elsewhere.
fn reexports(page: &str) -> Vec<String> {
    let codes = page.split("<code>").skip(1);
    let codes = codes.filter_map(|rest| rest.split_once("</code>"));
    let lines = codes.map(|(code, _)| line(code));
    lines.filter(|it| it.starts_with("pub use ")).collect()
}

/// The declaration of an item, its own methods, and the headers of what it implements.
fn item_lines(page: &str) -> Vec<String> {
    let mut lines = declaration(page);
    let mut header_of_impl = None;
    // The declaration of a trait has all its methods.
    let shown = match page.contains("<body class=\"rustdoc trait\">") {
        true => String::new(),
        false => own_implementations(page),
    };
    for section in shown.split("<section id=\"").skip(1) {
        let section = section.split("</section>").next().unwrap_or_default();
        let Some((head, body)) = section.split_once('>') else {
            continue;
        };
        let Some(header) = between(body, "class=\"code-header\">", "</h").map(line) else {
            continue;
        };
        if head.starts_with("impl-") {
            // What derived implementations of PartialEq bring along is no promise.
            let is_trait_impl = header.contains(" for ");
            if is_trait_impl && !header.starts_with("impl StructuralPartialEq") {
                lines.push(header);
            } else if !is_trait_impl {
                header_of_impl = Some(header);
            }
        } else if head.starts_with("method.") && !head.contains("trait-impl") {
            lines.extend(header_of_impl.take());
            lines.push(format!("    {header}"));
        }
    }
    lines
}

/// The part of a page about what its type implements, without what every type has, and without the methods of what the
/// type derefs to.
fn own_implementations(page: &str) -> String {
    let until = |mark: &str, text: &str| text.split(mark).next().unwrap_or_default().to_owned();
    let own = until("id=\"synthetic-implementations\"", page);
    let traits = own
        .find("id=\"trait-implementations\"")
        .unwrap_or(own.len());
    until("id=\"deref-methods-", &own[..traits]) + &own[traits..]
}

/// The lines of the declaration at the head of a page.
fn declaration(page: &str) -> Vec<String> {
    let code = between(
        page,
        "<pre class=\"rust item-decl\"><code>",
        "</code></pre>",
    );
    // What is folded away has a heading, which is no part of the declaration.
    let mut shown = String::new();
    for part in code.unwrap_or_default().split("<summary") {
        shown.push_str(part.split_once("</summary>").map_or(part, |(_, rest)| rest));
    }
    let shown = text(&shown);
    let lines = shown.lines().map(str::trim_end);
    lines
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// Text in one line.
fn line(html: &str) -> String {
    let text = text(html).replace('ⓘ', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    // Rustdoc writes long signatures on several lines.
    let line = words.join(" ");
    line.replace("( ", "(").replace(", )", ")")
}

/// What a reader sees.
fn text(html: &str) -> String {
    let mut shown = String::new();
    // Attributes and bounds are on lines of their own.
    let html = html.replace("</div>", "\n").replace("<div", "\n<div");
    for part in html.split('<') {
        // Without a tag before it: the beginning.
        shown.push_str(part.split_once('>').map_or(part, |(_, rest)| rest));
    }
    let signs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    let signs = signs.into_iter();
    signs.fold(shown, |shown, (code, sign)| shown.replace(code, sign))
}

#[cfg(test)]
mod tests {
    use super::{item_lines, item_of, reexports};

    #[test]
    fn a_page_gives_declaration_methods_and_implementations() {
        let page = r##"<body class="rustdoc struct">
            <pre class="rust item-decl"><code><div class="code-attribute">#[non_exhaustive]</div>pub struct Map&lt;T&gt; {
    pub <a href="x">size</a>: usize,
<summary class="hideme"><span>Show 2 fields</span></summary>    pub b: T,
}</code></pre>
            <section id="impl-Map" class="impl"><a href="#impl-Map">§</a><h3 class="code-header">impl&lt;T&gt; Map&lt;T&gt;</h3></section>
            <section id="method.get" class="method"><h4 class="code-header">pub fn <a>get</a>(
    &amp;self) -&gt; Option&lt;&amp;T&gt; ⓘ<div class="where">where T: Copy</div></h4></section>
            <section id="impl-Map-1" class="impl"><h3 class="code-header">impl Map&lt;u8&gt;</h3></section>
            <h2 id="deref-methods-%5BT%5D">Methods from Deref</h2>
            <section id="method.first" class="method"><h4 class="code-header">pub fn first(&amp;self)</h4></section>
            <h2 id="trait-implementations">Trait Implementations</h2>
            <section id="impl-StructuralPartialEq-for-Map" class="impl"><h3 class="code-header">impl StructuralPartialEq for Map</h3></section>
            <section id="impl-Clone-for-Map" class="impl"><h3 class="code-header">impl Clone for Map</h3></section>
            <section id="method.clone" class="method trait-impl"><h4 class="code-header">fn clone(&amp;self)</h4></section>
            <h2 id="synthetic-implementations"></h2>
            <section id="impl-Send-for-Map" class="impl"><h3 class="code-header">impl Send for Map</h3></section>"##;
        assert_eq!(
            item_lines(page),
            [
                "#[non_exhaustive]",
                "pub struct Map<T> {",
                "    pub size: usize,",
                "    pub b: T,",
                "}",
                "impl<T> Map<T>",
                "    pub fn get(&self) -> Option<&T> where T: Copy",
                "impl Clone for Map",
            ]
        );
    }

    #[test]
    fn pages_are_known_by_their_names() {
        assert_eq!(item_of("struct.Client.html"), Some("Client"));
        assert_eq!(item_of("fn.cmd.html"), Some("cmd"));
        assert_eq!(item_of("macro.cmd!.html"), None);
        assert_eq!(item_of("all.html"), None);
        let page = "<dt><code>pub use client::<a>Client</a>;</code></dt><code>let x</code>";
        assert_eq!(reexports(page), ["pub use client::Client;"]);
    }
}
