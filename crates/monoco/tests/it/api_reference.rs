//! Generates docs/api.md from docs/openapi.json and the recorded examples.
//!
//! `UPDATE_DOCS=1 cargo test -p monoco --test it api_reference` regenerates the document.

use serde_json::{Value, json};

use crate::api_examples::{ApiExample, api_examples};
use crate::tidy::{check, read};

#[test]
fn docs_api_md_matches_openapi_json_and_the_examples() {
    let doc: Value = serde_json::from_str(&read("docs/openapi.json")).unwrap();
    let mut text = String::from(
        "# HTTP API\n\nGenerated from `/api/openapi.json`, which a running courier serves. \
         Loopback only; every\nroute but `/health` needs `Authorization: Bearer` with the token \
         that `monoco token show`\nprints, or with the token of an agent that has one of the scopes of the route \
         (see [agents.md](agents.md)).\nErrors are JSON `{code, message, …}`: `code` is \
         for programs and stable, `message` is for\npeople.\n\n\
         A test calls every route with the commands of the examples, after \
         `TOKEN=$(monoco token show)`,\nand records the answers. Ids, times and durations are \
         replaced. [answer-a-mail.md](answer-a-mail.md)\nputs five of them together.\n",
    );
    let mut examples = api_examples(&doc);
    for (path, item) in doc["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            text.push_str(&format!("\n## `{} {path}`\n\n", method.to_uppercase()));
            text.push_str(&format!("{}.\n", operation["summary"].as_str().unwrap()));
            if let Some(more) = operation["description"].as_str() {
                text.push_str(&format!("{more}\n"));
            }
            text.push_str(&scopes(operation));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let words = parameter["description"].as_str().unwrap_or("").trim();
                let place = parameter["in"].as_str().unwrap();
                let name = parameter["name"].as_str().unwrap();
                text.push_str(&format!("\n* `{name}` ({place}): {words}"));
            }
            if operation["parameters"].is_array() {
                text.push('\n');
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            fields(&doc, "Body", body, &mut text);
            for status in ["200", "201", "202"] {
                let answer = &operation["responses"][status]["content"]["application/json"];
                fields(&doc, "Answer", &answer["schema"], &mut text);
            }
            let route = (method.to_uppercase(), path.clone());
            let example = examples.remove(&route);
            let example = example.unwrap_or_else(|| panic!("{route:?} has no example"));
            write_example(&example, &mut text);
        }
    }
    text.push_str("\n## Shapes\n");
    for name in doc["components"]["schemas"].as_object().unwrap().keys() {
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        if !text.contains(&format!(", `{name}`:")) {
            fields(&doc, "Shape", &reference, &mut text);
        }
    }
    check("docs/api.md", &text);
}

/// Says which scope the token of an agent needs.
fn scopes(operation: &Value) -> String {
    let needed = operation["security"].as_array().into_iter().flatten();
    let needed: Vec<_> = needed.filter_map(|one| one["token"][0].as_str()).collect();
    match needed[..] {
        [] => "\nNeeds no token.\n".to_owned(),
        ["owner"] => "\nNeeds the owner's token.\n".to_owned(),
        _ => format!("\nScope: `{}`.\n", needed.join("` or `")),
    }
}

/// Writes a request and its answer as blocks.
fn write_example(example: &ApiExample, text: &mut String) {
    let ApiExample { curl, status, answer } = example;
    text.push_str(&format!("\nExample, answered with {status}:\n\n```sh\n{curl}\n```\n"));
    if !answer.is_empty() {
        let kind = if answer.starts_with(['{', '[']) { "json" } else { "text" };
        text.push_str(&format!("\n```{kind}\n{}\n```\n", answer.trim_end()));
    }
}

/// Lists the fields of a schema that is a reference.
fn fields(doc: &Value, title: &str, schema: &Value, text: &mut String) {
    let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) else {
        return;
    };
    let schema = &doc["components"]["schemas"][name];
    if schema["properties"].is_null() {
        return;
    }
    text.push_str(&format!("\n{title}, `{name}`:\n\n"));
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (field, about) in schema["properties"].as_object().into_iter().flatten() {
        let words = about["description"].as_str().unwrap_or("").replace('\n', " ");
        let optional = if required.contains(&Value::from(field.as_str())) { "" } else { "?" };
        let end = if words.is_empty() { String::new() } else { format!(": {words}") };
        text.push_str(&format!("* `{field}{optional}`{end}\n"));
    }
}
