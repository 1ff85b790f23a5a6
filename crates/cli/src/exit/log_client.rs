//! What errors of the log's client mean on the command line: an exit code, and which command or option helps.

use std::error::Error;

use embar_client::{AdminError, ClientError, OpenError, PublishError, ReadError};

use super::{CANNOT_CONNECT, DATA, USAGE};

/// The exit code of `cause`, if it is an error of the log's client that has one.
pub fn code(cause: &(dyn Error + 'static)) -> Option<u8> {
    if let Some(error) = client_error(cause) {
        return is_absent(error).then_some(CANNOT_CONNECT);
    }
    if let Some(OpenError::Read(error)) = cause.downcast_ref() {
        return read_code(error);
    }
    if let Some(error) = cause.downcast_ref::<ReadError>() {
        return read_code(error);
    }
    if let Some(OpenError::Setting(_) | OpenError::Address(_)) = cause.downcast_ref() {
        return Some(USAGE);
    }
    if let Some(AdminError::Address(_) | AdminError::UnknownBroker { .. }) = cause.downcast_ref() {
        return Some(USAGE);
    }
    match cause.downcast_ref::<PublishError>() {
        Some(PublishError::InDoubt | PublishError::Lost { .. }) => Some(DATA),
        _ => None,
    }
}

/// Libraries know no options: which command or option helps.
pub fn hint(cause: &(dyn Error + 'static)) -> Option<String> {
    match client_error(cause) {
        Some(ClientError::Unreachable { .. }) => {
            return Some("`embar up` starts a cluster, --bootstrap names another".into());
        }
        Some(ClientError::UnknownTopic { topic }) => {
            return Some(format!("`embar topic create {topic}`"));
        }
        _ => {}
    }
    match cause.downcast_ref::<PublishError>() {
        Some(PublishError::MessageTooLarge { .. }) => {
            Some("`embar topic create --max-message-size`".into())
        }
        Some(PublishError::Expired { .. }) => Some("check `embar status`".into()),
        _ => None,
    }
}

/// What is inside of the error of any operation, if that is what may end any client.
fn client_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a ClientError> {
    if let Some(OpenError::Client(error)) = cause.downcast_ref() {
        return Some(error);
    }
    if let Some(ReadError::Client(error)) = cause.downcast_ref() {
        return Some(error);
    }
    if let Some(AdminError::Client(error)) = cause.downcast_ref() {
        return Some(error);
    }
    match cause.downcast_ref::<PublishError>() {
        Some(PublishError::Client(error) | PublishError::Ended(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

fn is_absent(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreachable { .. } | ClientError::NoDataBrokers
    )
}

fn read_code(error: &ReadError) -> Option<u8> {
    match error {
        ReadError::BrokerLost { .. } | ReadError::AllBrokersLost { .. } => Some(CANNOT_CONNECT),
        ReadError::Evicted { .. } | ReadError::Corrupt { .. } | ReadError::BrokenOrder { .. } => {
            Some(DATA)
        }
        ReadError::Setting(_) => Some(USAGE),
        ReadError::Client(error) => is_absent(error).then_some(CANNOT_CONNECT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use embar_client::{Admin, ConnectionError};

    use super::*;
    use crate::exit;

    fn refused() -> ConnectionError {
        io::Error::from(io::ErrorKind::ConnectionRefused).into()
    }

    fn nobody() -> ClientError {
        ClientError::Unreachable {
            addresses: "x".into(),
            source: refused(),
        }
    }

    #[test]
    fn each_error_has_its_code() {
        let (limit, source) = (Duration::ZERO, refused());
        let lost = PublishError::Lost {
            messages: 1,
            source: Box::new(PublishError::InDoubt),
        };
        let corrupt = ReadError::Corrupt {
            broker: 1,
            offset: 2,
            cause: "x".into(),
        };
        let broker_lost = ReadError::BrokerLost {
            broker: 1,
            limit,
            source: source.clone(),
        };
        let all_lost = ReadError::AllBrokersLost { limit, source };
        let errors: [(anyhow::Error, u8); 9] = [
            (lost.into(), DATA),
            (corrupt.clone().into(), DATA),
            (OpenError::from(corrupt).into(), DATA),
            (broker_lost.into(), CANNOT_CONNECT),
            (all_lost.into(), CANNOT_CONNECT),
            (nobody().into(), CANNOT_CONNECT),
            (OpenError::from(nobody()).into(), CANNOT_CONNECT),
            (AdminError::from(nobody()).into(), CANNOT_CONNECT),
            (PublishError::Full.into(), exit::FAILURE),
        ];
        for (error, code) in errors {
            assert_eq!(exit::code(&error), code, "{error}");
        }
    }

    #[test]
    fn a_bad_address_is_the_callers_fault() {
        let error = Admin::connect("nonsense").expect_err("no port");
        assert_eq!(exit::code(&error.into()), USAGE);
    }

    #[test]
    fn an_error_says_what_to_type() {
        let error = anyhow::Error::from(OpenError::from(nobody()));
        let text = exit::explain(&error);
        assert!(
            text.contains("embar up") && text.contains("--bootstrap"),
            "{text}"
        );
        let topic = "t".to_string();
        let error = AdminError::from(ClientError::UnknownTopic { topic });
        let text = exit::explain(&error.into());
        assert!(text.ends_with("`embar topic create t`"), "{text}");
    }
}
