//! Batches: NDJSON, one line of answer for each line that was asked.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use monoco_store::{StoreError, StoreResult};
use serde::Serialize;

use super::error::ApiError;

/// Most lines of one batch.
const MAX_LINES: usize = 1_000;

/// The lines of a body with their numbers, from 1. Empty lines are numbered and skipped.
pub fn lines(body: &[u8]) -> Result<Vec<(usize, &[u8])>, ApiError> {
    let lines: Vec<_> = (1..)
        .zip(body.split(|byte| *byte == b'\n'))
        .filter(|(_, line)| !line.trim_ascii().is_empty())
        .collect();
    if lines.len() > MAX_LINES {
        let why = format!("found {} lines, expected at most {MAX_LINES}", lines.len());
        return Err(ApiError::bad_field("body", why));
    }
    Ok(lines)
}

/// Writes one line for each of `lines`: the error if it was rejected, else the next of
/// `results`, which `view` converts together with the number of the line.
pub fn respond<T, V: Serialize>(
    lines: Vec<(usize, Result<(), ApiError>)>,
    results: Vec<StoreResult<T>>,
    view: impl Fn(usize, T) -> Result<V, ApiError>,
) -> Result<Response, ApiError> {
    let mut results = results.into_iter();
    let mut text = Vec::new();
    for (number, parsed) in lines {
        let line = parsed.and_then(|()| view(number, results.next().ok_or_else(no_result)??));
        let written = match line {
            Ok(line) => serde_json::to_writer(&mut text, &line),
            Err(error) => serde_json::to_writer(&mut text, &error.line(number)),
        };
        written.map_err(|error| ApiError::wrong_shape(&error))?;
        text.push(b'\n');
    }
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

/// The store returned no result for a request, which is reported as a failure.
pub fn no_result() -> ApiError {
    StoreError::Unavailable("the store returned no result for a request".to_owned()).into()
}

#[cfg(test)]
mod tests {
    use axum::body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn empty_lines_are_numbered_and_skipped() {
        let found = lines(b"one\n\n \r\nfour\n").unwrap();
        assert_eq!(found, [(1, &b"one"[..]), (4, b"four")]);
        assert_eq!(lines(b"").unwrap(), []);
    }

    #[test]
    fn batch_with_too_many_lines_is_rejected() {
        assert_eq!(lines("x\n".repeat(MAX_LINES).as_bytes()).unwrap().len(), MAX_LINES);
        let error = lines("x\n".repeat(MAX_LINES + 1).as_bytes()).unwrap_err();
        assert_eq!(error.message, "body: found 1001 lines, expected at most 1000");
    }

    #[tokio::test]
    async fn each_line_has_its_own_result() {
        let bad = || ApiError::bad_field("to", "missing");
        let lines = vec![(1, Ok(())), (3, Err(bad())), (4, Ok(())), (5, Ok(())), (6, Ok(()))];
        let results = vec![Ok("a"), Err(StoreError::DiskFull), Ok("bad")];
        let view = |number, result| match result {
            "bad" => Err(bad()),
            _ => Ok(json!({"line": number, "result": result})),
        };
        let response = respond(lines, results, view).unwrap();
        let bytes = body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let text = String::from_utf8(bytes.into()).unwrap();
        let found: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| format!("{} {}{}", line["line"], line["result"], line["code"]))
            .collect();
        let expected = [
            r#"1 "a"null"#,
            r#"3 null"bad_field""#,
            r#"4 null"storage_full""#,
            r#"5 null"bad_field""#,
            r#"6 null"unavailable""#,
        ];
        assert_eq!(found, expected);
    }
}
