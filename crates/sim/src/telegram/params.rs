//! Parameters of a call: from the query, a form, a multipart form or JSON.

use serde_json::{Map, Value};

use crate::http::{SimRequest, parse_form};
use crate::multipart::{FormPart, parse_multipart};

/// Parameters and files of one call.
#[derive(Debug, Default)]
pub struct SimTelegramParams {
    pub fields: Map<String, Value>,
    pub files: Vec<FormPart>,
}

impl SimTelegramParams {
    /// Reads the parameters of a request. A value of a form stays text.
    pub fn read(request: &SimRequest) -> Self {
        let mut params = Self::default();
        params.add_form(&request.query);
        let kind = request.header("content-type").unwrap_or_default();
        if kind.starts_with("application/json") {
            if let Ok(Value::Object(body)) = serde_json::from_slice(&request.body) {
                params.fields.extend(body);
            }
        } else if kind.starts_with("application/x-www-form-urlencoded") {
            params.add_form(&String::from_utf8_lossy(&request.body));
        } else if kind.starts_with("multipart/form-data") {
            for part in parse_multipart(kind, &request.body).unwrap_or_default() {
                if part.file_name.is_some() {
                    params.files.push(part);
                } else {
                    let text = String::from_utf8_lossy(&part.content).into_owned();
                    params.fields.insert(part.name, Value::String(text));
                }
            }
        }
        params
    }

    fn add_form(&mut self, text: &str) {
        let fields = parse_form(text).into_iter();
        self.fields.extend(fields.map(|(name, value)| (name, Value::String(value))));
    }

    /// The text of a parameter; numbers and JSON are written as text. Empty if it is absent.
    pub fn text(&self, name: &str) -> String {
        match self.fields.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// A parameter that has structure; a form has it as JSON text. `None` if it is no JSON.
    pub fn json(&self, name: &str) -> Option<Value> {
        match self.fields.get(name)? {
            Value::Null => None,
            Value::String(text) => serde_json::from_str(text).ok(),
            value => Some(value.clone()),
        }
    }

    /// A number; `None` if the parameter is absent or no number.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.text(name).trim().parse().ok()
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.text(name).trim().to_lowercase().as_str(), "true" | "yes" | "1")
    }

    /// The file with this field name.
    pub fn file(&self, name: &str) -> Option<&FormPart> {
        self.files.iter().find(|part| part.name == name)
    }
}
