//! Calls of agents: MCP tools beside the plain API, and the cost of the approval policy for a send.

use std::time::Duration;

use crate::common::Result;
use crate::common::args::Args;
use crate::common::courier::{RunningCourier, between, unexpected_response};
use crate::common::drive::{Bounds, drive, median};
use crate::common::figures::{head, line, machine, thousands};
use crate::common::http::Conn;

/// Connections that call at the same time.
const CALLERS: usize = 8;

/// Mails that the agent lists and reads.
const MAILS: usize = 50;

/// Times that the Mails are looked for. A window closes after 1 ms.
const MAX_LOOKS: usize = 10_000;

/// Two ways to the same result.
struct Pair {
    name: &'static str,
    tool: &'static str,
    /// Arguments of the tool; `{mail}` is a Mail, `{number}` differs in each call.
    arguments: &'static str,
    /// Method, path and body of the plain API.
    plain: (&'static str, &'static str, &'static str),
}

const PAIRS: [Pair; 3] = [
    Pair {
        name: "list 20 Mails",
        tool: "list_mails",
        arguments: r#"{"limit":20}"#,
        plain: ("GET", "/api/v1/messages?limit=20&order=newest", ""),
    },
    Pair {
        name: "read a Mail",
        tool: "read_mail",
        arguments: r#"{"id":"{mail}"}"#,
        plain: ("GET", "/api/v1/messages/{mail}", ""),
    },
    Pair {
        name: "send a message",
        tool: "send_message",
        arguments: r#"{"to":["did:web:bob"],"text":"number {number}","idempotency_key":"{number}"}"#,
        plain: (
            "POST",
            "/api/v1/post_send",
            r#"{"msg":{"from":"did:monoco:codex","to":["did:web:bob"],"kind":"chat","content":{"content":"plain {number}"}},"idempotency_key":"p{number}"}"#,
        ),
    },
];

/// The rules of docs/approvals.md, in an order in which a message to `bob` meets none of the first five.
const RULES: &str = "[
      { recipients_over: 5, do: refuse },
      { text_matches: '(?i)iban|password', do: hold },
      { after_untrusted: true, elsewhere: true, do: hold },
      { first_contact: true, do: hold },
      { reply: true, trust: known, do: send, at_most: 20/h },
      { to: [here], do: send } ]";

pub fn measure(args: &Args) -> Result<String> {
    let rounds = if args.quick { 2 } else { 6 };
    let mut report = format!(
        "{}; Monoco {}; {CALLERS} connections of one agent.\n\n",
        machine(),
        env!("CARGO_PKG_VERSION"),
    );
    report += &head("calls/s", &["tools/call", "plain API", "ratio", "target"].map(str::to_owned));
    let (courier, token, mail) = start_with_mails(args)?;
    for pair in PAIRS {
        let (mut tools, mut plains) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let rate = |request: Request| call_rate(args, &courier, &token, &request, round);
            let (tool, plain) = in_turns(
                round,
                || rate(Request::tool(&pair, &mail)),
                || rate(Request::plain(&pair, &mail)),
            )?;
            tools.push(tool);
            plains.push(plain);
        }
        let ratios = tools.iter().zip(&plains).map(|(tool, plain)| tool / plain).collect();
        report += &figures(pair.name, tools, plains, ratios, "≥ 0.70");
    }
    drop(courier);

    report += "\n";
    let columns = ["six rules", "no rule", "ratio", "target"].map(str::to_owned);
    report += &head("sends/s of the owner", &columns);
    let (mut checked, mut unchecked) = (Vec::new(), Vec::new());
    for round in 0..2 * rounds {
        let with_rules = format!("{{ owner: rules, rules: {RULES} }}");
        let (with, without) = in_turns(
            round,
            || send_rate(args, &with_rules, round),
            || send_rate(args, "{ owner: send }", round),
        )?;
        checked.push(with);
        unchecked.push(without);
    }
    let ratios = checked.iter().zip(&unchecked).map(|(with, without)| with / without).collect();
    report += &figures("to a local inbox", checked, unchecked, ratios, "≥ 0.95");
    Ok(report)
}

/// Two rates. Each is the first of a round as often as the other: the speed of a machine drifts.
fn in_turns(
    round: usize,
    one: impl Fn() -> Result<f64>,
    other: impl Fn() -> Result<f64>,
) -> Result<(f64, f64)> {
    if round.is_multiple_of(2) {
        let rate = one()?;
        Ok((rate, other()?))
    } else {
        let rate = other()?;
        Ok((one()?, rate))
    }
}

/// A row of two rates and their ratio, medians of all rounds.
fn figures(
    name: &str,
    first: Vec<f64>,
    second: Vec<f64>,
    ratios: Vec<f64>,
    target: &str,
) -> String {
    let [first, second, ratio] = [first, second, ratios].map(|all| median(all).unwrap_or(0.0));
    eprintln!("{name}: {first:.0} and {second:.0}, ratio {ratio:.2}");
    let ratio = format!("{ratio:.2}");
    line(name, &[thousands(first), thousands(second), ratio, target.to_owned()])
}

/// One request; `{number}` of the body differs in each call.
struct Request {
    method: &'static str,
    path: String,
    headers: String,
    body: String,
}

impl Request {
    fn tool(pair: &Pair, mail: &str) -> Self {
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let arguments = pair.arguments.replace("{mail}", mail);
        Self {
            method: "POST",
            path: "/mcp".to_owned(),
            headers: format!(
                "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {}\r\n\
                 Accept: application/json, text/event-stream\r\n",
                pair.tool
            ),
            body: format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{}","arguments":{arguments},"_meta":{meta}}}}}"#,
                pair.tool
            ),
        }
    }

    fn plain(pair: &Pair, mail: &str) -> Self {
        let (method, path, body) = pair.plain;
        let path = path.replace("{mail}", mail);
        Self { method, path, headers: String::new(), body: body.to_owned() }
    }

    fn call(&self, conn: &mut Conn, number: &str) -> Result<u64> {
        let body = self.body.replace("{number}", number);
        let (status, answer) =
            conn.request(self.method, &self.path, &self.headers, body.as_bytes())?;
        // A tool that fails answers 200 too.
        let failed = br#""isError":true"#;
        if status == 200 && !answer.windows(failed.len()).any(|part| part == failed) {
            Ok(1)
        } else {
            Err(unexpected_response(status, answer))
        }
    }
}

fn call_rate(
    args: &Args,
    courier: &RunningCourier,
    token: &str,
    request: &Request,
    round: usize,
) -> Result<f64> {
    let measured = drive(CALLERS, bounds(args), |worker| {
        let mut conn = Conn::open(courier.addr, token, "application/json")?;
        let mut number = 0_u64;
        Ok(move || {
            number += 1;
            request.call(&mut conn, &format!("{round}-{worker}-{number}"))
        })
    });
    Ok(measured?.rate)
}

fn bounds(args: &Args) -> Bounds {
    let measure = Duration::from_secs(if args.quick { 2 } else { 5 });
    Bounds { warm_up: Duration::from_secs(1), measure, calls: 10_000_000 }
}

fn start(args: &Args, courier: &str) -> Result<RunningCourier> {
    let data = tempfile::tempdir_in(&args.dir)?;
    let dir = data.path().join("courier");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("config.yaml"), format!("courier:\n{courier}"))?;
    let courier = RunningCourier::start(data)?;
    let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
    let contact = br#"{"names":["Bob"],"here":true}"#;
    let (status, answer) = conn.request("PUT", "/api/v1/contacts/did:web:bob", "", contact)?;
    if status < 300 { Ok(courier) } else { Err(unexpected_response(status, answer)) }
}

/// A courier with Mails, the token of an agent that may read and send, and the id of a Mail.
fn start_with_mails(args: &Args) -> Result<(RunningCourier, String, String)> {
    let courier = start(
        args,
        "  debounce: { window_ms: 1, max_wait_ms: 1 }\n  approvals: { agents: send }\n  adapters:\n    \
         ci: { provider: webhook, verify: none, allow_unverified: true }\n",
    )?;
    let add = ["token", "add", "codex", "--scope", "read,send", "--as", "did:monoco:codex"];
    let added = courier.command(&add).output()?;
    let token = String::from_utf8(added.stdout)?.trim().to_owned();
    let mut webhook = Conn::plain(courier.webhooks, "application/json")?;
    for number in 0..MAILS {
        let body = format!(
            r#"{{"id":"{number}","session":{{"id":"room-{number}","type":"group"}},"from":{{"id":"ann"}},"text":"message {number} of a room"}}"#
        );
        let (status, answer) = webhook.post("/webhooks/ci", body.as_bytes())?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
    }
    let mut conn = Conn::open(courier.addr, &token, "application/json")?;
    for _ in 0..MAX_LOOKS {
        let (_, answer) = conn.request("GET", "/api/v1/messages?limit=100", "", b"")?;
        let first = r#""id":"webhook_"#;
        if answer.windows(first.len()).filter(|part| *part == first.as_bytes()).count() == MAILS {
            let mail = between(answer, r#""id":""#, "\"").ok_or("no id")?.to_owned();
            return Ok((courier, token, mail));
        }
    }
    Err("the Mails are not merged".into())
}

/// Sends of the owner per second under a policy.
fn send_rate(args: &Args, policy: &str, round: usize) -> Result<f64> {
    let courier = start(args, &format!("  approvals: {policy}\n"))?;
    let request = Request {
        method: "POST",
        path: "/api/v1/post_send".to_owned(),
        headers: String::new(),
        body: r#"{"msg":{"from":"did:monoco:me","to":["did:web:bob"],"kind":"chat","content":{"content":"number {number}"}}}"#.to_owned(),
    };
    let token = courier.token.clone();
    call_rate(args, &courier, &token, &request, round)
}
