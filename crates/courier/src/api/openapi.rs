//! Generates `docs/openapi.json` from the annotations of handlers and views.
//!
//! Only the tests contain the annotations and this module: the courier serves the generated
//! file. `UPDATE_DOCS=1 cargo test -p monoco openapi` writes it anew.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{OPENAPI_JSON, OpenApiPaths, ROUTES, json_layout};
use crate::api::error::ApiErrorView;

/// Longest line of the document, in bytes.
const MAX_LINE: usize = 140;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

/// The document: annotations, and what all routes have in common.
fn document() -> Value {
    #[derive(OpenApi)]
    #[openapi(components(schemas(ApiErrorView)))]
    struct Errors;

    let mut api = OpenApiPaths::openapi();
    api.merge(Errors::openapi());
    let mut doc = serde_json::to_value(api).unwrap();
    doc["info"] = json!({
        "title": "Monoco",
        "description": "Message hub for people and AI agents",
        "version": env!("CARGO_PKG_VERSION"),
        "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
    });
    doc["servers"] = json!([{"url": "/", "description": "The courier that serves this document"}]);
    doc["security"] = json!([{"token": []}]);
    doc["components"]["securitySchemes"] = json!({"token": {
        "type": "http", "scheme": "bearer",
        "description": "The token that `monoco token show` prints, or the token of an agent that has \
                        one of the scopes that the route needs",
    }});
    doc["components"]["responses"] = json!({"Error": {
        "description": "The request is rejected; `code` says why",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }});
    doc["tags"] = json!([
        {"name": "center", "description": "Dispatch and send messages, store objects"},
        {"name": "mails", "description": "Read and claim Mails"},
        {"name": "letters", "description": "Letters and the pipeline that processes them"},
        {"name": "boxes", "description": "Boxes with their records and deliveries"},
        {"name": "people", "description": "Contacts, groups and blocks"},
        {"name": "tunnels", "description": "Tunnels: their rules, health, tests and pauses"},
        {"name": "sessions", "description": "Conversations and receipts"},
        {"name": "tokens", "description": "Tokens of agents"},
        {"name": "events", "description": "Event log and the history of messages"},
        {"name": "health", "description": "State of the courier"},
    ]);
    for (method, path, access) in ROUTES {
        let needed = access.names().into_iter().map(|scope| json!({"token": [scope]}));
        doc["paths"][path][method]["security"] = needed.collect();
    }
    let schemas = doc["components"]["schemas"].clone();
    for item in doc["paths"].as_object_mut().unwrap().values_mut() {
        for operation in item.as_object_mut().unwrap().values_mut() {
            let responses = operation["responses"].as_object_mut().unwrap();
            for status in ["4XX", "5XX"] {
                let error = json!({"$ref": "#/components/responses/Error"});
                responses.insert(status.to_owned(), error);
            }
            describe(responses, &schemas);
        }
    }
    doc
}

/// Responses without a description get that of their schema.
fn describe(responses: &mut Map<String, Value>, schemas: &Value) {
    for response in responses.values_mut() {
        if response["description"].is_string() || response["$ref"].is_string() {
            continue;
        }
        let schema = &response["content"]["application/json"]["schema"]["$ref"];
        let name = schema.as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let described = schemas[name]["description"].as_str();
        let described = described.unwrap_or_else(|| panic!("{name:?} needs a doc comment"));
        response["description"] = described.trim_end_matches('.').into();
    }
}

#[test]
fn openapi_json_matches_the_annotations() {
    let text = json_layout::format(&document(), MAX_LINE);
    if text == OPENAPI_JSON {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PATH, text).unwrap();
        return;
    }
    let line = OPENAPI_JSON.lines().zip(text.lines()).position(|(a, b)| a != b);
    panic!("docs/openapi.json is stale from line {line:?}; run the tests with UPDATE_DOCS=1");
}

#[test]
fn openapi_document_has_exactly_the_routes_of_the_router() {
    let doc = document();
    let mut documented = BTreeSet::new();
    for (path, item) in doc["paths"].as_object().unwrap() {
        documented.extend(
            item.as_object().unwrap().keys().map(|method| (method.as_str(), path.as_str())),
        );
    }
    assert_eq!(documented, ROUTES.iter().map(|(method, path, _)| (*method, *path)).collect());
}

#[test]
fn operation_ids_are_unique() {
    let doc = document();
    let mut ids = BTreeSet::new();
    for item in doc["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "two operations have the id {id}");
        }
    }
    assert_eq!(ids.len(), ROUTES.len());
}
