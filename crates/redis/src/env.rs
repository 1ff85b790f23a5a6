//! Configurations from the environment.

use std::ffi::OsString;

use thiserror::Error;

use crate::config::Config;
use crate::url::UrlError;

/// The variable in which platforms put the URL of a program's server.
pub const URL_VARIABLE: &str = "REDIS_URL";

/// Why the environment has no configuration. The messages quote no value, which may have a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnvError {
    /// The variable is not set, or empty.
    #[error(
        "the variable {variable} is not set; set it to a URL, for example redis://localhost:6379"
    )]
    NotSet {
        /// Its name.
        variable: String,
    },
    /// The variable is no text.
    #[error("the variable {variable} is not UTF-8; write other bytes as %XX")]
    NotText {
        /// Its name.
        variable: String,
    },
    /// The variable is no URL.
    #[error("the variable {variable}: {error}")]
    Url {
        /// Its name.
        variable: String,
        /// What is wrong.
        error: UrlError,
    },
}

impl Config {
    /// The configuration that the variable `REDIS_URL` has as a URL (see [`url`](crate::url)).
    ///
    /// # Errors
    /// When it is not set, or [`Config::from_url`] refuses it.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_env_var(URL_VARIABLE)
    }

    /// As [`Config::from_env`], with another variable.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_env_var(variable: &str) -> Result<Self, EnvError> {
        read(variable, std::env::var_os(variable))
    }
}

fn read(variable: &str, value: Option<OsString>) -> Result<Config, EnvError> {
    let variable = variable.to_owned();
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Err(EnvError::NotSet { variable });
    };
    let Ok(url) = value.into_string() else {
        return Err(EnvError::NotText { variable });
    };
    // A file of settings leaves its line's end, and a copy its spaces.
    let read = Config::from_url(url.trim());
    read.map_err(|error| EnvError::Url { variable, error })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::config::Secret;

    #[test]
    fn errors_name_the_variable_and_no_password() {
        for value in [None, Some(OsString::new())] {
            let error = read("REDIS_URL", value).expect_err("there is none");
            assert!(
                error.to_string().contains("REDIS_URL is not set"),
                "{error}"
            );
        }
        let error = read("X", Some(OsString::from_vec(vec![0xFF]))).expect_err("it is no text");
        assert!(error.to_string().contains("X is not UTF-8"), "{error}");
        let url = "http://:hunter2@h".into();
        let error = read("X", Some(url)).expect_err("it is another scheme");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("X: the URL must begin"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_url_is_read() {
        let config = read("X", Some(" redis://:word@h/2\n".into())).expect("it is one");
        let password = Some(Secret::new("word"));
        assert_eq!((config.database, config.password), (2, password));
    }
}
