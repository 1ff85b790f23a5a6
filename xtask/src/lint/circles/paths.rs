//! Reads from the sources of a crate which modules it has, and which other modules each of them uses.

use super::Place;
use super::tokens::{self, Token, is_word};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The way from the root of a crate to a module or an item in it.
type ModulePath = Vec<String>;

/// How often a name may be passed on before it is taken for one that never ends.
const PASSED_ON_MAX: usize = 16;

/// What one crate has of modules, and what they name.
#[derive(Default)]
pub struct Crate {
    modules: BTreeSet<ModulePath>,
    /// What a name stands for that a module imports.
    imports: BTreeMap<(ModulePath, String), ModulePath>,
    /// Module, what it names, and where.
    named: Vec<(ModulePath, ModulePath, Place)>,
}

impl Crate {
    /// Reads the sources of a crate: (file below `src`, text).
    pub fn read(sources: &[(PathBuf, String)]) -> Self {
        let mut files = Vec::new();
        let mut this = Self::default();
        let mut tests = BTreeSet::new();
        for (file, text) in sources {
            let module = module_of(file);
            let tokens = tokens::of(text);
            let tokens = without_tests(&tokens, &module, &mut tests);
            this.modules.insert(module.clone());
            files.push((file, module, tokens));
        }
        let is_test = |module: &ModulePath| tests.iter().any(|test| module.starts_with(test));
        this.modules.retain(|module| !is_test(module));
        for (_, module, tokens) in &files {
            this.find_inline(module, tokens);
        }
        for (file, module, tokens) in files.iter().filter(|(_, module, _)| !is_test(module)) {
            Reader {
                found: &mut this,
                file,
                tokens,
                at: 0,
            }
            .read(module);
        }
        this
    }

    /// Which module uses which other, and where.
    pub fn uses(&self) -> impl Iterator<Item = (ModulePath, ModulePath, Place)> {
        self.named.iter().filter_map(|(module, path, place)| {
            let used = self.resolve(path, PASSED_ON_MAX)?;
            Some((module.clone(), used, place.clone()))
        })
    }

    /// Modules that are written within others.
    fn find_inline(&mut self, module: &ModulePath, tokens: &[Token<'_>]) {
        let mut open = vec![(module.clone(), 0)];
        let mut depth = 0;
        for (at, token) in tokens.iter().enumerate() {
            match token.text {
                "{" => {
                    depth += 1;
                    if at >= 2 && tokens[at - 2].text == "mod" {
                        let (parent, _) = open.last().expect("the file itself is never closed");
                        let inner = below(parent, tokens[at - 1].text);
                        self.modules.insert(inner.clone());
                        open.push((inner, depth));
                    }
                }
                "}" => {
                    if open.last().is_some_and(|(_, at)| *at == depth && depth > 0) {
                        open.pop();
                    }
                    depth -= 1;
                }
                _ => {}
            }
        }
    }

    /// The module in which the last name of a path is defined; `None` if it is of another crate.
    fn resolve(&self, path: &[String], passed_on: usize) -> Option<ModulePath> {
        let mut module = ModulePath::new();
        for (at, name) in path.iter().enumerate() {
            let inner = below(&module, name);
            if self.modules.contains(&inner) {
                module = inner;
                continue;
            }
            let Some(import) = self.imports.get(&(module.clone(), name.clone())) else {
                break;
            };
            let further = [import, &path[at + 1..]].concat();
            return passed_on
                .checked_sub(1)
                .and_then(|left| self.resolve(&further, left));
        }
        Some(module)
    }
}

fn below(module: &[String], name: &str) -> ModulePath {
    [module, &[name.to_owned()]].concat()
}

/// The module that a file below `src` is.
fn module_of(file: &Path) -> ModulePath {
    let names = file.with_extension("");
    let mut module: ModulePath = names
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let root = module.len() == 1 && ["lib", "main"].contains(&module[0].as_str());
    if root || module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    module
}

/// The tokens of what is compiled for users. Modules of tests that are files of their own go into
/// `tests`.
fn without_tests<'a>(
    tokens: &[Token<'a>],
    module: &[String],
    tests: &mut BTreeSet<ModulePath>,
) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute =
            tokens[at].text == "#" && tokens.get(at + 1).is_some_and(|it| it.text == "[");
        if !attribute {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = closed(tokens, at + 1);
        if is_for_tests(&tokens[at + 2..end]) {
            let item_end = end_of_item(tokens, end + 1);
            let item = &tokens[end + 1..item_end];
            let name = item.iter().position(|it| it.text == "mod");
            if let Some(name) = name.and_then(|name| item.get(name + 1)) {
                tests.insert(below(module, name.text));
            }
            at = item_end;
        } else {
            at = end + 1;
        }
    }
    kept
}

/// Whether an attribute leaves something to tests and models: `test`, or a `cfg` with one of these
/// that is not negated.
fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    if attribute.len() == 1 {
        return attribute[0].text == "test";
    }
    let mut at = 0;
    let is_cfg = attribute.first().is_some_and(|it| it.text == "cfg");
    while is_cfg && at < attribute.len() {
        match attribute[at].text {
            "not" => at = closed(attribute, at + 1),
            "test" | "loom" => return true,
            _ => {}
        }
        at += 1;
    }
    false
}

/// Where the bracket at `open` is closed.
fn closed(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// Behind the item, field or expression that begins at `start`.
fn end_of_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].text {
            "{" => return closed(tokens, at) + 1,
            "(" | "[" => at = closed(tokens, at),
            ";" | "," => return at + 1,
            ")" | "]" | "}" => return at,
            _ => {}
        }
        at += 1;
    }
    at.min(tokens.len())
}

/// Reads the paths of one file.
struct Reader<'a> {
    found: &'a mut Crate,
    file: &'a Path,
    tokens: &'a [Token<'a>],
    at: usize,
}

impl Reader<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |it| it.text)
    }

    /// Up to the end of this module.
    fn read(&mut self, module: &ModulePath) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "mod" if self.text(2) == "{" => {
                    let inner = below(module, self.text(1));
                    self.at += 3;
                    self.read(&inner);
                }
                "use" => {
                    self.at += 1;
                    self.read_tree(module, &[]);
                }
                "{" => {
                    depth += 1;
                    self.at += 1;
                }
                "}" if depth == 0 => {
                    self.at += 1;
                    return;
                }
                "}" => {
                    depth -= 1;
                    self.at += 1;
                }
                "crate" | "self" | "super" if self.text(1) == "::" => self.read_path(module),
                _ => self.at += 1,
            }
        }
    }

    /// `crate::a::b`, outside of imports.
    fn read_path(&mut self, module: &ModulePath) {
        let line = self.tokens[self.at].line;
        let mut path = vec![self.text(0).to_owned()];
        self.at += 1;
        while self.text(0) == "::" && self.text(1).starts_with(is_word) {
            path.push(self.text(1).to_owned());
            self.at += 2;
        }
        if let Some(path) = self.absolute(module, &path) {
            self.name(module, path, line);
        }
    }

    /// `a::{b, c as d}` of an import, from here on, behind `before`.
    fn read_tree(&mut self, module: &ModulePath, before: &[String]) {
        let mut path = before.to_vec();
        let line = self.tokens.get(self.at).map_or(0, |it| it.line);
        let mut alias = None;
        loop {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.text(0)) {
                        self.read_tree(module, &path);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    alias = Some(self.text(1).to_owned());
                    self.at += 2;
                }
                "::" | "*" => self.at += 1,
                word if word.starts_with(is_word) => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        // `a::{self}` is `a`.
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let Some(full) = self.absolute(module, &path) else {
            return;
        };
        if let Some(name) = alias.or_else(|| path.last().cloned()) {
            let entry = (module.clone(), name);
            self.found.imports.entry(entry).or_insert(full.clone());
        }
        self.name(module, full, line);
    }

    fn name(&mut self, module: &ModulePath, path: ModulePath, line: usize) {
        let file = Path::new("src").join(self.file);
        let place = Place { file, line };
        self.found.named.push((module.clone(), path, place));
    }

    /// The whole path; `None` for one into another crate.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let mut at = module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let inner = self.found.modules.contains(&below(module, first));
                let import = (module.clone(), first.to_owned());
                if !inner && !self.found.imports.contains_key(&import) {
                    return None;
                }
            }
        }
        at.extend(rest.iter().cloned());
        Some(at)
    }
}
