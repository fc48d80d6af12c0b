//! Decides whether the sender of a mail is verified, from `Authentication-Results` (RFC 8601).
//!
//! Anyone can write this field, so only the one that the own mail server has added counts. The
//! server is named by `authserv_id`. Servers add the field above all others of the mail, so
//! only the topmost field with that id is read: a forged one of the same id is below it. A
//! server that adds no field of its own must remove forged ones (RFC 8601, section 5), or
//! `authserv_id` must stay unset.
//!
//! The sender is verified by one of these results:
//!
//! * `dmarc=pass` whose `header.from` is the domain of `From`
//! * `dkim=pass` whose `header.d` (or the domain of `header.i`) is that domain or a parent of it
//! * `spf=pass` whose `smtp.mailfrom` has that domain
//!
//! A `dmarc` result other than `pass`, `none` or a missing one rejects the sender whatever the
//! others say. A mail with several `From` fields or addresses is never verified.

use monoco_mime::ParsedMail;

/// Whether the sender in `From` wrote a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderVerification {
    pub verified: bool,
    /// The result that decided, for the log and the user.
    pub why: String,
}

/// Limit of results that are read from one field.
const MAX_RESULTS: usize = 100;

/// Decides whether the address in `From` is verified by the server `authserv_id`.
pub fn verify_sender(mail: &ParsedMail<'_>, authserv_id: Option<&str>) -> SenderVerification {
    let decided = decide(mail, authserv_id);
    let verified = decided.is_ok();
    let (Ok(why) | Err(why)) = decided;
    SenderVerification { verified, why }
}

/// The result that verifies the sender, or the reason why none does.
fn decide(mail: &ParsedMail<'_>, authserv_id: Option<&str>) -> Result<String, String> {
    let Some(id) = authserv_id.map(str::trim).filter(|id| !id.is_empty()) else {
        return Err("no authserv_id is configured".to_owned());
    };
    let [from] = mail.from.as_slice() else {
        return Err("the mail has no single From address".to_owned());
    };
    let domain = from.address.rsplit_once('@').map(|(_, domain)| normal_domain(domain));
    let Some(domain) = domain.filter(|domain| mail.is_from_clear && is_domain(domain)) else {
        return Err("the From address is ambiguous".to_owned());
    };
    let fields = mail.header.raw_values("Authentication-Results");
    let mut fields = fields.map(|value| AuthResults::read(&value));
    let Some(results) = fields.find(|results| results.id.eq_ignore_ascii_case(id)) else {
        return Err(format!("no Authentication-Results of {id}"));
    };
    results.decide(&domain)
}

/// One `Authentication-Results` field of a mail.
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthResults {
    /// The server that added it; empty when the field is malformed.
    id: String,
    results: Vec<AuthResult>,
}

/// The result of one method, such as `dkim=pass header.d=example.com`.
#[derive(Debug, PartialEq, Eq)]
struct AuthResult {
    /// The method in lower case.
    method: String,
    /// The result in lower case.
    result: String,
    /// `header.d` and the like, in lower case, with their values.
    properties: Vec<(String, String)>,
}

impl AuthResults {
    fn read(value: &str) -> Self {
        let mut statements = statements(value).into_iter();
        let first = statements.next().unwrap_or_default();
        // `mx.example.com 1`: a version may follow.
        let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
        let id = match first.as_slice() {
            [id] => id,
            [id, version] if is_number(version) => id,
            _ => return Self::default(),
        };
        let results = statements.take(MAX_RESULTS).filter_map(|words| AuthResult::read(&words));
        Self { id: id.clone(), results: results.collect() }
    }

    /// Applies the rules of this module to the results.
    fn decide(&self, domain: &str) -> Result<String, String> {
        let of = |method: &'static str| {
            self.results.iter().filter(move |result| result.method == method)
        };
        for dmarc in of("dmarc") {
            let is_own = dmarc.get("header.from").map(normal_domain).as_deref() == Some(domain);
            match dmarc.result.as_str() {
                "pass" if is_own => return Ok(format!("dmarc=pass header.from={domain}")),
                "pass" | "none" => {}
                result => return Err(format!("dmarc={result}")),
            }
        }
        for dkim in of("dkim").filter(|result| result.result == "pass") {
            let signer = dkim.get("header.d").or_else(|| dkim.domain("header.i"));
            let signer = signer.map(normal_domain).unwrap_or_default();
            if is_domain(&signer) && is_same_or_parent(&signer, domain) {
                return Ok(format!("dkim=pass header.d={signer}"));
            }
        }
        for spf in of("spf").filter(|result| result.result == "pass") {
            let sender = spf.domain("smtp.mailfrom").or_else(|| spf.get("smtp.mailfrom"));
            if sender.map(normal_domain).as_deref() == Some(domain) {
                return Ok(format!("spf=pass smtp.mailfrom={domain}"));
            }
        }
        let found: Vec<_> =
            self.results.iter().map(|found| format!("{}={}", found.method, found.result)).collect();
        let found = if found.is_empty() { "no results".to_owned() } else { found.join(", ") };
        Err(format!("no passing result for {domain}: {found}"))
    }
}

impl AuthResult {
    /// Reads `method=result`, `reason=…` and properties.
    fn read(words: &[String]) -> Option<Self> {
        let mut pairs = words.iter().map(|word| word.split_once('='));
        let (method, result) = pairs.next()??;
        // `dkim/1`: a version may follow.
        let method = method.split('/').next().unwrap_or_default().to_ascii_lowercase();
        let properties =
            pairs.flatten().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Some(Self { method, result: result.to_ascii_lowercase(), properties: properties.collect() })
    }

    /// The value of a property that occurs once.
    fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.properties.iter().filter(|(property, _)| property == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }

    /// The domain behind the `@` of a property.
    fn domain(&self, name: &str) -> Option<&str> {
        self.get(name)?.rsplit_once('@').map(|(_, domain)| domain)
    }
}

/// Splits a field at its semicolons into words. Comments are dropped, quotes are removed, and
/// blanks around an equals sign do not count.
fn statements(value: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut chars = value.chars().peekable();
    let mut depth = 0_usize;
    let mut is_quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if is_quoted => word.extend(chars.next()),
            '\\' if depth > 0 => drop(chars.next()),
            '"' if depth == 0 => is_quoted = !is_quoted,
            _ if is_quoted => word.push(c),
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            ';' => {
                end_word(&mut words, &mut word);
                all.push(std::mem::take(&mut words));
            }
            '=' if word.is_empty() && words.last().is_some_and(|last| !last.contains('=')) => {
                word = words.pop().unwrap_or_default() + "=";
            }
            c if c.is_whitespace() => {
                let continues = word.find('=').is_some_and(|at| at > 0 && at + 1 == word.len());
                if !continues {
                    end_word(&mut words, &mut word);
                }
            }
            _ => word.push(c),
        }
    }
    // A quote or comment that does not end makes the last statement unreadable.
    if !is_quoted && depth == 0 {
        end_word(&mut words, &mut word);
        all.push(words);
    }
    all
}

fn end_word(words: &mut Vec<String>, word: &mut String) {
    if !word.is_empty() {
        words.push(std::mem::take(word));
    }
}

/// A domain in lower case, without a final dot.
fn normal_domain(domain: &str) -> String {
    domain.trim().trim_end_matches('.').to_lowercase()
}

/// Whether this is a domain of at least two labels.
fn is_domain(domain: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
    };
    domain.contains('.') && domain.split('.').all(is_label)
}

fn is_same_or_parent(parent: &str, domain: &str) -> bool {
    let rest = domain.strip_suffix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests;
