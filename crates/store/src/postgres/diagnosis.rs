//! Describes an error of PostgreSQL, with what an operator can do about it.

use std::error::Error as _;

use monoco_core::filter::nearest;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What failed, and the next step where one is known. Has no part of the URL.
pub(super) fn describe(error: &Error) -> String {
    let Some(db) = error.as_db_error() else {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!("{error}{cause}");
        let next = connection_step(&text).map(|next| format!("; {next}")).unwrap_or_default();
        return format!("PostgreSQL: {text}{next}");
    };
    let text = format!("PostgreSQL {}: {}", db.code().code(), db.message());
    let wants_tls = *db.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
        && db.message().contains("no encryption");
    if wants_tls {
        return format!("{text}; the server wants TLS: add sslmode=require to the URL");
    }
    match next_step(db.code()) {
        Some(next) => format!("{text}; {next}"),
        None => text,
    }
}

/// Parameters that an unknown one can be a misspelling of.
const PARAMETERS: [&str; 7] = [
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "connect_timeout",
    "application_name",
    "options",
    "load_balance_hosts",
];

/// Parameters of other clients that this one does not have.
const UNSUPPORTED: [&str; 7] =
    ["sslcert", "sslkey", "sslcrl", "gssencmode", "passfile", "service", "client_encoding"];

/// Which parameter of a URL is invalid. An unknown name is not repeated: it can be a part of the
/// password.
pub(super) fn invalid_parameter(error: &Error) -> Option<String> {
    let cause = error.source()?.to_string();
    let name = cause.split('`').nth(1)?;
    match cause.starts_with("invalid value") {
        true => Some(format!("invalid value of {name}")),
        false if UNSUPPORTED.contains(&name) => Some(format!("{name} is not supported")),
        false => nearest(name, &PARAMETERS)
            .map(|known| format!("unknown parameter; did you mean {known}?")),
    }
}

/// What to do when the server cannot be reached.
fn connection_step(text: &str) -> Option<&'static str> {
    if text.contains("does not allow writes") {
        return Some(
            "no server of the URL accepts writes; start the primary, or promote a standby",
        );
    }
    if text.contains("does not support TLS") {
        return Some("set ssl = on on the server, or use sslmode=disable in a network you trust");
    }
    if text.contains("certificate expired") {
        return Some("renew the certificate of the server, and check the clock of this machine");
    }
    if text.contains("certificate") || text.contains("TLS") {
        return Some(
            "the server must have a certificate for its name in the URL; sslrootcert=FILE in the \
             URL names the certificates that sign it",
        );
    }
    let is_unreachable = text.starts_with("error connecting to server")
        || text.starts_with("timeout waiting for server");
    is_unreachable.then_some("check that it runs, and the host and port in courier.storage.store")
}

/// What to do after the server has rejected something.
fn next_step(code: &SqlState) -> Option<&'static str> {
    let steps = [
        (
            SqlState::INVALID_PASSWORD,
            "check the user and the password in courier.storage.store, or in its file or command",
        ),
        (
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            "check the user in courier.storage.store, and pg_hba.conf on the server",
        ),
        (
            SqlState::INVALID_CATALOG_NAME,
            "create the database, or correct its name in courier.storage.store",
        ),
        (
            SqlState::INSUFFICIENT_PRIVILEGE,
            "the role needs a schema of its own: run CREATE SCHEMA monoco AUTHORIZATION its role, \
             or GRANT CREATE ON DATABASE",
        ),
        (
            SqlState::TOO_MANY_CONNECTIONS,
            "raise max_connections on the server: a courier uses up to 10 connections",
        ),
        (SqlState::CANNOT_CONNECT_NOW, "the server is starting or stopping; try again"),
        (
            SqlState::READ_ONLY_SQL_TRANSACTION,
            "the server is a standby; connect to the primary, for example with several hosts and \
             target_session_attrs=read-write",
        ),
    ];
    steps.into_iter().find(|(known, _)| known == code).map(|(_, next)| next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_failures_have_a_next_step() {
        for code in ["28P01", "28000", "3D000", "42501", "53300", "57P03", "25006"] {
            assert!(next_step(&SqlState::from_code(code)).is_some(), "{code}");
        }
        assert_eq!(next_step(&SqlState::from_code("22012")), None);
        let refused = "error connecting to server: Connection refused (os error 111)";
        assert!(connection_step(refused).is_some_and(|step| step.contains("port")));
        let read_only = "error connecting to server: database does not allow writes";
        assert!(connection_step(read_only).is_some_and(|step| step.contains("primary")));
        let tls = "error performing TLS handshake: invalid peer certificate: UnknownIssuer";
        assert!(connection_step(tls).is_some_and(|step| step.contains("sslrootcert")));
        assert_eq!(connection_step("connection closed"), None);
    }
}
