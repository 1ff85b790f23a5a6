//! Services: what a file has of them, whether it fits, and the code for it.

mod code;

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;

use protox::prost_reflect::prost_types::{
    FileDescriptorProto, MethodDescriptorProto, ServiceDescriptorProto,
};

use crate::messages::Compiled;
use crate::names;

/// A service as the code for it needs it.
pub(crate) struct Service {
    /// `Greeter`.
    pub(crate) name: String,
    /// `greeter.v1.Greeter`.
    pub(crate) path: String,
    pub(crate) comment: String,
    pub(crate) methods: Vec<Method>,
}

/// A method of a service.
pub(crate) struct Method {
    /// `SayHello`.
    pub(crate) name: String,
    /// `say_hello`.
    pub(crate) function: String,
    pub(crate) comment: String,
    pub(crate) request: String,
    pub(crate) reply: String,
    pub(crate) streams: bool,
}

/// Writes the code for the services of the file `name`, and has the module of its package include it.
pub(crate) fn write(compiled: &Compiled, name: &str) -> Result<(), Box<dyn Error>> {
    let proto = format!("{name}.proto");
    let files = &compiled.descriptors.file;
    let file = files.iter().find(|file| file.name() == proto);
    let file = file.ok_or_else(|| format!("{proto} has no descriptor"))?;
    let services = services(file).map_err(|error| format!("{proto}: {error}"))?;
    let mut code = String::from("// @generated from a proto file's services. Do not edit.\n");
    for service in &services {
        code::service(&mut code, service)?;
    }
    fs::write(compiled.out.join(format!("{name}.services.rs")), code)?;
    let module = compiled.out.join(format!("{}.mod.rs", file.package()));
    let mut text = fs::read_to_string(&module)?;
    let include = format!("include!(\"{name}.services.rs\");\n");
    if !text.contains(&include) {
        write!(text, "{include}")?;
        fs::write(&module, text)?;
    }
    Ok(())
}

/// The services of a file, if all of them fit.
fn services(file: &FileDescriptorProto) -> Result<Vec<Service>, String> {
    if file.service.is_empty() {
        return Err("it has no service: compile it with embar_build::compile".into());
    }
    if file.package().is_empty() {
        return Err("a file with services needs a package: its name is part of theirs".into());
    }
    let services: Result<Vec<Service>, String> = (0..)
        .zip(&file.service)
        .map(|(index, service)| checked_service(file, index, service))
        .collect();
    let services = services?;
    refuse_collisions(file, &services)?;
    Ok(services)
}

fn checked_service(
    file: &FileDescriptorProto,
    index: i32,
    service: &ServiceDescriptorProto,
) -> Result<Service, String> {
    if names::is_word_of_rust(service.name()) {
        return Err(format!(
            "the service {} has a name that Rust needs for itself: rename it",
            service.name()
        ));
    }
    let methods: Result<Vec<Method>, String> = (0..)
        .zip(&service.method)
        .map(|(at, method)| {
            let comment = comment(file, &[6, index, 2, at]);
            checked_method(file, service.name(), method, comment)
        })
        .collect();
    let methods = methods?;
    let mut functions = HashMap::new();
    for method in &methods {
        for function in [method.function.clone(), names::view(&method.function)] {
            if let Some(other) = functions.insert(function.clone(), &method.name) {
                return Err(format!(
                    "{other} and {} of {} would both have the function {function}: rename one of them",
                    method.name,
                    service.name()
                ));
            }
        }
    }
    Ok(Service {
        name: service.name().to_owned(),
        path: format!("{}.{}", file.package(), service.name()),
        comment: comment(file, &[6, index]),
        methods,
    })
}

fn checked_method(
    file: &FileDescriptorProto,
    service: &str,
    method: &MethodDescriptorProto,
    comment: String,
) -> Result<Method, String> {
    let name = method.name();
    if method.client_streaming() {
        return Err(format!(
            "{service}.{name} takes a stream of requests, which embar-rpc does not: take one message, and call it \
             for each, or send messages over a session"
        ));
    }
    let message = |kind: &str, path: &str| {
        let known = file.message_type.iter().map(|message| message.name());
        let prefix = format!(".{}.", file.package());
        let own = path
            .strip_prefix(&prefix)
            .filter(|own| known.clone().any(|known| known == *own));
        if let Some(own) = own.filter(|own| names::is_word_of_rust(own)) {
            return Err(format!(
                "the {kind} of {service}.{name} is {own}, a name that Rust needs for itself: rename it"
            ));
        }
        own.map(str::to_owned).ok_or_else(|| {
            let path = path.trim_start_matches('.');
            format!(
                "the {kind} of {service}.{name} is {path}: use a message at the top level of this file, which may \
                 have that one as a field"
            )
        })
    };
    Ok(Method {
        name: name.to_owned(),
        function: names::function(name),
        comment,
        request: message("request", method.input_type())?,
        reply: message("reply", method.output_type())?,
        streams: method.server_streaming(),
    })
}

/// Refuses names that the code for services and messages would both have, and numbers that two methods have.
fn refuse_collisions(file: &FileDescriptorProto, services: &[Service]) -> Result<(), String> {
    let messages = file.message_type.iter().map(|message| message.name());
    let enums = file.enum_type.iter().map(|numbers| numbers.name());
    let mut names: HashSet<String> = HashSet::new();
    for message in messages {
        names.extend(["", "View", "OwnedView"].map(|end| format!("{message}{end}")));
    }
    names.extend(enums.map(str::to_owned));
    let mut numbers = HashMap::new();
    for service in services {
        for end in ["", "Client", "Server", "Async", "AsyncServer"] {
            let name = format!("{}{end}", service.name);
            if !names.insert(name.clone()) {
                let service = &service.name;
                return Err(format!(
                    "the service {service} makes a {name}, and something else is called so: rename one of them"
                ));
            }
        }
        for method in &service.methods {
            let path = format!("{}/{}", service.path, method.name);
            let number = method_number(&path);
            if let Some(other) = numbers.insert(number, path.clone()) {
                return Err(format!(
                    "{other} and {path} have the same number {number:#010x}: rename one of them"
                ));
            }
        }
    }
    Ok(())
}

/// As in `embar-rpc`: FNV-1a of 32 bits.
fn method_number(path: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    path.bytes().fold(0x811C_9DC5, step)
}

/// The comment before what is at this place of a file.
fn comment(file: &FileDescriptorProto, path: &[i32]) -> String {
    let info = file.source_code_info.as_ref();
    let locations = info.map_or(&[][..], |info| &info.location);
    let here = locations.iter().find(|location| location.path == path);
    here.map_or_else(String::new, |here| here.leading_comments().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protox::Compiler;
    use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

    /// One file, by any name.
    struct Only(&'static str);

    impl FileResolver for Only {
        fn open_file(&self, name: &str) -> Result<File, protox::Error> {
            File::from_source(name, self.0)
        }
    }

    fn services_of(source: &'static str) -> Result<Vec<Service>, String> {
        let mut resolver = ChainFileResolver::new();
        resolver.add(GoogleFileResolver::new());
        resolver.add(Only(source));
        let mut compiler = Compiler::with_file_resolver(resolver);
        compiler.include_source_info(true).include_imports(true);
        compiler.open_file("test.proto").unwrap();
        let set = compiler.file_descriptor_set();
        let file = set.file.iter().find(|file| file.name() == "test.proto");
        services(file.unwrap())
    }

    fn refused(source: &'static str) -> String {
        services_of(source).err().expect("it does not fit")
    }

    #[test]
    fn services_have_their_comments() {
        let services = services_of(
            r#"syntax = "proto3"; package a.b;
            message M {}
            // Does it.
            service S {
              // Once.
              rpc DoIt(M) returns (M);
              rpc Many(M) returns (stream M);
            }"#,
        )
        .unwrap();
        let [service] = &services[..] else {
            panic!("one service");
        };
        assert_eq!(service.path, "a.b.S");
        assert_eq!(service.comment.trim(), "Does it.");
        let [once, many] = &service.methods[..] else {
            panic!("two methods");
        };
        assert_eq!(once.comment.trim(), "Once.");
        assert_eq!((once.function.as_str(), once.streams), ("do_it", false));
        assert_eq!((many.function.as_str(), many.streams), ("many", true));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_reason() {
        for (source, reason) in [
            (
                r#"syntax = "proto3"; package a; message M {} service S { rpc Up(stream M) returns (M); }"#,
                "S.Up takes a stream of requests",
            ),
            (
                r#"syntax = "proto3"; package a; message M { message N {} } service S { rpc A(M.N) returns (M); }"#,
                "the request of S.A is a.M.N",
            ),
            (
                r#"syntax = "proto3"; package a; import "google/protobuf/empty.proto"; message M {}
                service S { rpc A(M) returns (google.protobuf.Empty); }"#,
                "the reply of S.A is google.protobuf.Empty",
            ),
            (
                r#"syntax = "proto3"; message M {} service S { rpc A(M) returns (M); }"#,
                "needs a package",
            ),
            (
                r#"syntax = "proto3"; package a; message M {}"#,
                "has no service",
            ),
            (
                r#"syntax = "proto3"; package a; message SClient {} service S { rpc A(SClient) returns (SClient); }"#,
                "makes a SClient",
            ),
            (
                r#"syntax = "proto3"; package a; message M {} service S { rpc A(M) returns (M); rpc AView(M) returns (M); }"#,
                "both have the function a_view",
            ),
            (
                r#"syntax = "proto3"; package a; message M {} service S { rpc DoIt(M) returns (M); rpc do_it(M) returns (M); }"#,
                "DoIt and do_it of S would both have the function do_it",
            ),
            (
                r#"syntax = "proto3"; package a; message M {} service S { rpc New(M) returns (M); rpc new_(M) returns (M); }"#,
                "both have the function new_",
            ),
            (
                r#"syntax = "proto3"; package a; message M {} service Self { rpc A(M) returns (M); }"#,
                "the service Self has a name that Rust needs",
            ),
            (
                r#"syntax = "proto3"; package a; message type {} service S { rpc A(type) returns (type); }"#,
                "the request of S.A is type, a name",
            ),
        ] {
            let said = refused(source);
            assert!(said.contains(reason), "{said}");
        }
    }

    #[test]
    fn methods_with_the_same_number_are_refused() {
        // Found by a search: two names of one length whose hashes collide.
        let (one, other) = collision();
        assert_eq!(method_number(&one), method_number(&other));
        let method = |path: &str| Method {
            name: path.strip_prefix("a.S/").unwrap().to_owned(),
            function: String::new(),
            comment: String::new(),
            request: "M".into(),
            reply: "M".into(),
            streams: false,
        };
        let service = Service {
            name: "S".into(),
            path: "a.S".into(),
            comment: String::new(),
            methods: vec![method(&one), method(&other)],
        };
        let error = refuse_collisions(&FileDescriptorProto::default(), &[service]).unwrap_err();
        assert!(error.contains("have the same number"), "{error}");
    }

    fn collision() -> (String, String) {
        let mut seen = HashMap::new();
        (0_u64..)
            .find_map(|index| {
                let path = format!("a.S/M{index}");
                let other = seen.insert(method_number(&path), path.clone());
                other.map(|other| (other, path))
            })
            .expect("there are only so many numbers")
    }
}
