//! The code for one service.
//!
//! It lies in a module with the messages of a package, which may have any names, and calls methods that may have any, too. So it names
//! everything by its whole path, calls each method as that of its trait, and its own names begin with `__`.

use std::fmt::{self, Write};

use super::{Method, Service};
use crate::names;

/// Appends the code for a service.
pub(super) fn service(out: &mut String, service: &Service) -> fmt::Result {
    methods(out, service)?;
    client(out, service)?;
    handlers(out, service)?;
    handler_server(out, service)?;
    futures(out, service)?;
    future_server(out, service)
}

/// The table of methods. Its name cannot be that of a message.
fn table(service: &Service) -> String {
    format!("__{}_METHODS", service.name)
}

fn methods(out: &mut String, service: &Service) -> fmt::Result {
    let count = service.methods.len();
    writeln!(
        out,
        "\n#[allow(non_upper_case_globals)]\nstatic {}: [::embar_rpc::Method; {count}] = [",
        table(service)
    )?;
    for method in &service.methods {
        let (path, name, streams) = (&service.path, &method.name, method.streams);
        writeln!(
            out,
            "    ::embar_rpc::Method::new(\"{path}/{name}\", {streams}),"
        )?;
    }
    writeln!(out, "];")
}

fn client(out: &mut String, service: &Service) -> fmt::Result {
    let Service { name, path, .. } = service;
    write!(
        out,
        "
/// Calls `{path}`. Cheap to clone.
///
{doc}#[derive(Clone, Debug)]
pub struct {name}Client {{
    channel: ::embar_rpc::Channel,
}}

#[allow(dead_code, clippy::all, clippy::pedantic)]
impl {name}Client {{
    /// Calls on this channel.
    #[must_use]
    pub fn new(channel: ::embar_rpc::Channel) -> Self {{
        Self {{ channel }}
    }}

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &::embar_rpc::Channel {{
        &self.channel
    }}
",
        doc = doc(&service.comment, ""),
    )?;
    for (index, method) in service.methods.iter().enumerate() {
        let Method {
            function,
            request,
            reply,
            ..
        } = method;
        let (call, kind) = match method.streams {
            true => ("stream", "Items"),
            false => ("call", "PendingCall"),
        };
        let table = table(service);
        let view = names::view(function);
        write!(
            out,
            "
{doc}    pub fn {function}<'a>(
        &self,
        request: &'a {request},
    ) -> ::embar_rpc::{kind}<::embar_rpc::Owned<'a, {request}>, {reply}> {{
        self.channel.{call}(&{table}[{index}], ::embar_rpc::Owned(request))
    }}

    /// As [`Self::{function}`], with a view of the request.
    pub fn {view}<'a, 'v>(
        &self,
        request: &'a __buffa::view::{request}View<'v>,
    ) -> ::embar_rpc::{kind}<
        ::embar_rpc::Viewed<'a, 'v, __buffa::view::{request}View<'v>>,
        {reply},
    > {{
        self.channel.{call}(&{table}[{index}], ::embar_rpc::Viewed::new(request))
    }}
",
            doc = doc_or(&method.comment, "    ", &method.name),
        )?;
    }
    writeln!(out, "}}")
}

fn handlers(out: &mut String, service: &Service) -> fmt::Result {
    let Service { name, path, .. } = service;
    write!(
        out,
        "
/// Serves `{path}`: each function is called on the worker of its session, and must not block. It
/// answers at once, or keeps the reply and answers later, from any thread.
///
{doc}#[allow(clippy::all, clippy::pedantic)]
pub trait {name}: ::core::marker::Send + ::core::marker::Sync + 'static {{
",
        doc = doc(&service.comment, ""),
    )?;
    for method in &service.methods {
        let Method {
            function,
            request,
            reply,
            ..
        } = method;
        let (field, kind) = answer(method);
        write!(
            out,
            "{doc}    fn {function}(
        &self,
        call: &::embar_rpc::Call,
        request: __buffa::view::{request}View<'_>,
        {field}: ::embar_rpc::{kind}<{reply}>,
    );
",
            doc = doc_or(&method.comment, "    ", &method.name),
        )?;
    }
    writeln!(out, "}}")
}

fn answer(method: &Method) -> (&'static str, &'static str) {
    match method.streams {
        true => ("items", "Sink"),
        false => ("reply", "Reply"),
    }
}

fn handler_server(out: &mut String, service: &Service) -> fmt::Result {
    let (name, table) = (&service.name, table(service));
    write!(
        out,
        "
/// Has a [`{name}`] served by a router.
pub struct {name}Server<__Service>(__Service);

#[allow(dead_code)]
impl<__Service: {name}> {name}Server<__Service> {{
    /// Serves this.
    #[must_use]
    pub fn new(service: __Service) -> Self {{
        Self(service)
    }}
}}

#[allow(unused_variables, clippy::all, clippy::pedantic)]
impl<__Service: {name}> ::embar_rpc::Service for {name}Server<__Service> {{
    fn methods(&self) -> &'static [::embar_rpc::Method] {{
        &{table}
    }}

    fn call(&self, method: ::core::primitive::usize, request: ::embar_rpc::Request<'_>) {{
        match method {{
"
    )?;
    for (index, method) in service.methods.iter().enumerate() {
        let Method {
            function,
            request,
            reply,
            ..
        } = method;
        let kind = if method.streams { "stream" } else { "unary" };
        writeln!(
            out,
            "            {index} => request.{kind}::<{request}, {reply}>(|call, request, reply| {{
                <__Service as {name}>::{function}(&self.0, call, request, reply)
            }}),"
        )?;
    }
    writeln!(out, "            _ => {{}}\n        }}\n    }}\n}}")
}

fn futures(out: &mut String, service: &Service) -> fmt::Result {
    let Service { name, path, .. } = service;
    write!(
        out,
        "
/// Serves `{path}` with async functions, each call in a task of its own. When nobody waits for a
/// call any more, its future is dropped.
///
{doc}#[allow(clippy::all, clippy::pedantic)]
pub trait {name}Async: ::core::marker::Send + ::core::marker::Sync + 'static {{
",
        doc = doc(&service.comment, ""),
    )?;
    for method in &service.methods {
        let Method {
            function,
            request,
            reply,
            ..
        } = method;
        let (items, output) = match method.streams {
            true => (
                format!("\n        items: &mut ::embar_rpc::Sink<{reply}>,"),
                "()",
            ),
            false => (String::new(), reply.as_str()),
        };
        write!(
            out,
            "{doc}    fn {function}(
        &self,
        call: ::embar_rpc::Call,
        request: {request},{items}
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<{output}, ::embar_rpc::Status>,
    > + ::core::marker::Send;
",
            doc = doc_or(&method.comment, "    ", &method.name),
        )?;
    }
    writeln!(out, "}}")
}

fn future_server(out: &mut String, service: &Service) -> fmt::Result {
    let (name, table) = (&service.name, table(service));
    write!(
        out,
        "
/// Has a [`{name}Async`] served by a router.
pub struct {name}AsyncServer<__Service> {{
    service: ::std::sync::Arc<__Service>,
    spawn: ::embar_rpc::Spawn,
}}

#[allow(dead_code)]
impl<__Service: {name}Async> {name}AsyncServer<__Service> {{
    /// Serves this, in tasks that `spawn` begins: see [`Spawn::new`](::embar_rpc::Spawn::new).
    #[must_use]
    pub fn new(
        service: __Service,
        spawn: impl ::core::ops::Fn(::embar_rpc::BoxFuture) + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {{
        let (service, spawn) = (::std::sync::Arc::new(service), ::embar_rpc::Spawn::new(spawn));
        Self {{ service, spawn }}
    }}
}}

#[allow(unused_variables, clippy::all, clippy::pedantic)]
impl<__Service: {name}Async> ::embar_rpc::Service for {name}AsyncServer<__Service> {{
    fn methods(&self) -> &'static [::embar_rpc::Method] {{
        &{table}
    }}

    fn call(&self, method: ::core::primitive::usize, request: ::embar_rpc::Request<'_>) {{
        let service = ::std::sync::Arc::clone(&self.service);
        match method {{
"
    )?;
    for (index, method) in service.methods.iter().enumerate() {
        let Method {
            function,
            request,
            reply,
            ..
        } = method;
        if method.streams {
            writeln!(
                out,
                "            {index} => request.spawn_stream::<{request}, {reply}, _>(&self.spawn, move |call, request, mut items| async move {{
                let outcome = <__Service as {name}Async>::{function}(&service, call, request, &mut items).await;
                (items, outcome)
            }}),"
            )?;
        } else {
            writeln!(
                out,
                "            {index} => request.spawn_unary::<{request}, {reply}, _>(&self.spawn, move |call, request| async move {{
                <__Service as {name}Async>::{function}(&service, call, request).await
            }}),"
            )?;
        }
    }
    writeln!(out, "            _ => {{}}\n        }}\n    }}\n}}")
}

/// A comment of a proto file, as one of Rust: text alone. There, brackets and angles would be links and HTML, and what is
/// indented or fenced would be a program that is compiled and run with the tests.
fn doc(comment: &str, indent: &str) -> String {
    let mut lines = String::new();
    for line in comment.trim_end().lines() {
        let line = line.trim();
        let mut text = String::new();
        if line.starts_with("```") || line.starts_with("~~~") {
            text.push('\\');
        }
        for letter in line.chars() {
            if "[]<>".contains(letter) {
                text.push('\\');
            }
            text.push(letter);
        }
        lines += format!("{indent}/// {text}").trim_end();
        lines.push('\n');
    }
    lines
}

/// As [`doc`]; what has no comment says its name.
fn doc_or(comment: &str, indent: &str, name: &str) -> String {
    match comment.trim().is_empty() {
        true => format!("{indent}/// Calls `{name}`.\n"),
        false => doc(comment, indent),
    }
}

#[cfg(test)]
mod tests {
    use super::doc;

    #[test]
    fn comments_become_text_and_no_programs() {
        let comment = " Says [hello] to <you>.\n\n     let x = 1;\n ```\n";
        let text = "  /// Says \\[hello\\] to \\<you\\>.\n  ///\n  /// let x = 1;\n  /// \\```\n";
        assert_eq!(doc(comment, "  "), text);
    }
}
