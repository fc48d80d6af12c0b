//! Batches: NDJSON, one line of answer for each line that was asked.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use monoco_store::StoreError;
use serde::Serialize;

use super::error::ApiError;

/// Most lines of one batch.
const MAX_LINES: usize = 1_000;

/// The lines of a body, each with its number, from 1. Empty ones count, and are left out.
pub fn lines(body: &[u8]) -> Result<Vec<(usize, &[u8])>, ApiError> {
    let lines: Vec<_> = (1..)
        .zip(body.split(|byte| *byte == b'\n'))
        .filter(|(_, line)| !line.trim_ascii().is_empty())
        .collect();
    if lines.len() > MAX_LINES {
        let why = format!("{} lines; {MAX_LINES} is the most", lines.len());
        return Err(ApiError::bad_field("body", why));
    }
    Ok(lines)
}

/// Writes a line for each of `lines`: why it was refused when it was read, or the next of
/// `answers`, as `show` makes it from the line's number and what the store said.
pub fn answer<T, V: Serialize>(
    lines: Vec<(usize, Result<(), ApiError>)>,
    answers: Vec<Result<T, StoreError>>,
    show: impl Fn(usize, T) -> Result<V, ApiError>,
) -> Result<Response, ApiError> {
    let mut answers = answers.into_iter();
    let mut text = Vec::new();
    for (number, read) in lines {
        let answer = read.and_then(|()| show(number, answers.next().ok_or_else(no_answer)??));
        let written = match answer {
            Ok(answer) => serde_json::to_writer(&mut text, &answer),
            Err(problem) => serde_json::to_writer(&mut text, &problem.line(number)),
        };
        written.map_err(|error| ApiError::wrong_shape(&error))?;
        text.push(b'\n');
    }
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

/// The store answers whatever it is asked. Should it ever not, nobody is told it is done.
pub fn no_answer() -> ApiError {
    StoreError::Unavailable("the store gave no answer".to_owned()).into()
}

#[cfg(test)]
mod tests {
    use axum::body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn empty_lines_count_and_are_left_out() {
        let found = lines(b"one\n\n \r\nfour\n").unwrap();
        assert_eq!(found, [(1, &b"one"[..]), (4, b"four")]);
        assert_eq!(lines(b"").unwrap(), []);
    }

    #[test]
    fn a_batch_has_at_most_so_many_lines() {
        assert_eq!(lines("x\n".repeat(MAX_LINES).as_bytes()).unwrap().len(), MAX_LINES);
        let problem = lines("x\n".repeat(MAX_LINES + 1).as_bytes()).unwrap_err();
        assert_eq!(problem.message, "body: 1001 lines; 1000 is the most");
    }

    #[tokio::test]
    async fn each_line_gets_its_own_answer() {
        let bad = || ApiError::bad_field("to", "nobody");
        let lines = vec![(1, Ok(())), (3, Err(bad())), (4, Ok(())), (5, Ok(())), (6, Ok(()))];
        let answers = vec![Ok("a"), Err(StoreError::DiskFull), Ok("odd")];
        let show = |number, said| match said {
            "odd" => Err(bad()),
            _ => Ok(json!({"line": number, "said": said})),
        };
        let response = answer(lines, answers, show).unwrap();
        let bytes = body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let text = String::from_utf8(bytes.into()).unwrap();
        let found: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| format!("{} {}{}", line["line"], line["said"], line["code"]))
            .collect();
        let wanted = [
            r#"1 "a"null"#,
            r#"3 null"bad_field""#,
            r#"4 null"storage_full""#,
            r#"5 null"bad_field""#,
            r#"6 null"unavailable""#,
        ];
        assert_eq!(found, wanted);
    }
}
