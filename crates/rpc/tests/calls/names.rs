//! Methods and messages with names that Rust, its traits or the generated code have, too.

use embar_rpc::session::{self, Settings};
use embar_rpc::{Call, Channel, Reply, Router, Sink, Status};

use crate::support::proto::{
    Fn, FnView, Odd, OddAsync, OddAsyncServer, OddClient, OddServer, T, TView, Text, TextView,
};
use crate::support::{block_on, loopback, number, runtime, text};

/// Gives back what it gets.
struct Mirror;

macro_rules! mirror {
    ($($function:ident $message:ident $view:ident,)*) => {
        impl Odd for Mirror {
            $(fn $function(&self, _: &Call, request: $view<'_>, reply: Reply<$message>) {
                reply.send_view(&request);
            })*

            fn new_(&self, _: &Call, _: TextView<'_>, items: Sink<crate::support::proto::Number>) {
                items.finish(Ok(()));
            }

            fn as_ref(&self, _: &Call, request: TextView<'_>, mut items: Sink<Text>) {
                items.try_send(&text(request.text)).unwrap();
                items.finish(Ok(()));
            }

            fn call(&self, _: &Call, _: TextView<'_>, items: Sink<Text>) {
                items.finish(Ok(()));
            }
        }

        impl OddAsync for Mirror {
            $(async fn $function(&self, _: Call, request: $message) -> Result<$message, Status> {
                Ok(request)
            })*

            async fn new_(
                &self,
                _: Call,
                _: Text,
                items: &mut Sink<crate::support::proto::Number>,
            ) -> Result<(), Status> {
                items.send(&number(1, 0)).await
            }

            async fn as_ref(
                &self,
                _: Call,
                request: Text,
                items: &mut Sink<Text>,
            ) -> Result<(), Status> {
                items.send(&request).await
            }

            async fn call(&self, _: Call, _: Text, _: &mut Sink<Text>) -> Result<(), Status> {
                Ok(())
            }
        }
    };
}

mirror! {
    r#type Text TextView,
    drop T TView,
    self_ Fn FnView,
    clone_ Text TextView,
    into_ Text TextView,
    to_owned Text TextView,
    start Text TextView,
    channel_ Text TextView,
    fmt Text TextView,
}

#[test]
fn any_name_reaches_its_method() {
    let runtime = runtime();
    let spawn = move |future| std::mem::drop(runtime.spawn(future));
    for router in [
        Router::new().add_service(OddServer::new(Mirror)),
        Router::new().add_service(OddAsyncServer::new(Mirror, spawn)),
    ] {
        let server = router
            .start(session::Server::builder().listen(loopback()))
            .unwrap();
        let client = embar_rpc::client(Settings::default()).unwrap();
        let odd = OddClient::new(Channel::connect(&client, server.address()).unwrap());
        let hello = text("hello");
        for call in [
            odd.r#type(&hello),
            odd.clone_(&hello),
            odd.into_(&hello),
            odd.to_owned(&hello),
            odd.start(&hello),
            odd.channel_(&hello),
            odd.fmt(&hello),
        ] {
            assert_eq!(call.wait().unwrap().view().unwrap().text, "hello");
        }
        let letter = T {
            text: "hello".into(),
        };
        let reply = odd.drop(&letter).wait().unwrap();
        assert_eq!(reply.view().unwrap().text, "hello");
        let function = Fn {
            text: "hello".into(),
        };
        let reply = odd.self_(&function).wait().unwrap();
        assert_eq!(reply.view().unwrap().text, "hello");
        let mut items = odd.as_ref(&hello);
        let item = block_on(items.next()).unwrap().unwrap();
        assert_eq!(item.view().unwrap().text, "hello");
    }
}
