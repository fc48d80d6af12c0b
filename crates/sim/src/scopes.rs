//! Permissions of the bots, which the control API can remove and add.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::control::ControlError;

/// The scopes that the bots have. All are granted at the start.
#[derive(Debug)]
pub struct BotScopes {
    known: &'static [&'static str],
    granted: BTreeSet<&'static str>,
}

impl BotScopes {
    pub fn new(known: &'static [&'static str]) -> Self {
        Self { known, granted: known.iter().copied().collect() }
    }

    pub fn has(&self, scope: &str) -> bool {
        self.granted.contains(scope)
    }

    /// Whether one of the scopes is granted, or none is needed.
    pub fn allows(&self, scopes: &[&str]) -> bool {
        scopes.is_empty() || scopes.iter().any(|scope| self.has(scope))
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.granted.iter().copied().collect()
    }

    /// Removes or adds scopes: `{"remove": […], "add": […]}`.
    pub fn change(&mut self, body: &Value) -> Result<Value, ControlError> {
        let names = |key: &str| body[key].as_array().cloned().unwrap_or_default();
        for name in names("remove") {
            self.granted.remove(self.find(&name)?);
        }
        for name in names("add") {
            self.granted.insert(self.find(&name)?);
        }
        Ok(json!({"scopes": self.names()}))
    }

    fn find(&self, name: &Value) -> Result<&'static str, ControlError> {
        let found = self.known.iter().find(|scope| name == **scope);
        let known = self.known;
        let unknown = || ControlError(format!("unknown scope {name}; expected one of {known:?}"));
        found.copied().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_removed_and_added_by_name() {
        let mut scopes = BotScopes::new(&["a:read", "b:read"]);
        scopes.change(&json!({"remove": ["a:read"]})).unwrap();
        assert_eq!(scopes.names(), ["b:read"]);
        assert!(scopes.allows(&["a:read", "b:read"]) && !scopes.allows(&["a:read"]));
        assert!(scopes.change(&json!({"add": ["c:read"]})).is_err());
    }
}
