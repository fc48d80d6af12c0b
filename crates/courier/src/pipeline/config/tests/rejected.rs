//! Tables of invalid pipelines with their errors.

use super::{bad, good};
use crate::config::error_table::error_cases;

/// Each line is followed by the error that it causes.
const INVALID_CHAINS: &str = r#"
inbound: [block, spma, deliver], workers: {spam: {rspamd: 'http://localhost'}}
    inbound: unknown worker "spma"; did you mean spam?
outbound: [tager, send], workers: {tagger: {kind: exec, command: [t]}}
    outbound: unknown worker "tager"; did you mean tagger?
outbound: [zzzzzzzz, send]
    outbound: unknown worker "zzzzzzzz"; configure it under courier.pipeline.workers
outbound: [Send]
    outbound: unknown worker "Send"; did you mean send?
outbound: ['${LOUD}', send]
    outbound: unknown worker "${LOUD}"; configure it under courier.pipeline.workers
outbound: ['${NOT_SET}', send]
    outbound: the variable NOT_SET is not set
inbound: [block, block, deliver]
    inbound: "block" occurs twice
inbound: [block]
    inbound: expected deliver or trash at the end
outbound: [merge]
    outbound: expected send or trash at the end
outbound: [send, merge]
    outbound: "merge" follows send, which ends the chain
outbound: [send, send]
    outbound: "send" follows send, which ends the chain
inbound: [trash, deliver]
    inbound: "deliver" follows trash, which ends the chain
outbound: [bin, send], workers: {bin: {kind: trash}}
    outbound: "send" follows bin, which ends the chain
outbound: [deliver]
    outbound: "deliver" is not allowed here: outbound messages are sent, not delivered
inbound: [send]
    inbound: "send" is not allowed here: inbound messages are delivered, not sent
inbound: [out], workers: {out: {kind: send}}
    inbound: "out" is not allowed here: inbound messages are delivered, not sent
inbound: [merge, deliver]
    inbound: "merge" is not allowed here: inbound messages are merged by `debounce`
inbound: [ours, deliver], workers: {ours: {kind: footer, text: x}}
    inbound: "ours" is not allowed here: a footer would change the text of the sender
tunnels: {ci: {outbound: [limit, send]}}
    workers.limit: expected at least one of per_recipient, per_domain and per_tunnel
tunnels: {ci: {inbound: [spam, block]}}, workers: {spam: {rspamd: 'http://localhost'}}
    tunnels.ci.inbound: expected deliver or trash at the end
outbound: [subject, send]
    workers.subject.template: is missing
outbound: [footer, send]
    workers.footer.text: is missing
inbound: [spam, deliver]
    workers.spam: expected `rules`, `rspamd` or both
"#;

#[test]
fn invalid_chains_are_rejected() {
    let long = format!("outbound: [{}]", "send, ".repeat(33));
    let others: [(&str, &str); 1] = [(&long, "outbound: 33 workers; the limit is 32")];
    let others = others.map(|(pipeline, wanted)| (pipeline, wanted.to_owned()));
    for (pipeline, wanted) in error_cases(INVALID_CHAINS).into_iter().chain(others) {
        assert_eq!(bad(pipeline), format!("courier.pipeline.{wanted}"), "{pipeline}");
    }
    let most = (0..31).map(|n| format!("w{n}: {{kind: subject, template: x}}"));
    let workers = most.collect::<Vec<_>>().join(", ");
    let names = (0..31).map(|n| format!("w{n}, ")).collect::<String>();
    let settings = good(&format!("workers: {{{workers}}}, outbound: [{names} send]"));
    assert_eq!(settings.outbound.0.len(), 32);
}

/// Each line is followed by the error that it causes.
const INVALID_WORKERS: &str = r#"
kind: exce, command: [a]
    .kind: expected block, spam, subject, footer, merge, limit, trash, send, deliver,
    beanstalkd, exec, http or toy, found "exce"; did you mean exec?
kind: exec, command: [a], tube: t
    : `tube` is a key of kind beanstalkd, not of exec
kind: deliver, timeout_s: 1
    : `timeout_s` is a key of kind spam, beanstalkd, exec or http, not of deliver
kind: http, url: 'https://a', command: [a]
    : `command` is a key of kind exec, not of http
kind: trash, tunnel: a
    : `tunnel` is a key of kind send, not of trash
kind: spam, rspamd: 'http://localhost', readdress: true
    : `readdress` is a key of kind beanstalkd, exec or http, not of spam
kind: spam, rules: [{name: a, text: b, score: 1}], parallel: 2
    : `parallel` needs `rspamd`, which is not set
kind: block, senders: [nobody]
    .senders: "nobody": expected name@domain or a DID; a whole domain is written @example.com
kind: block, recipients: ['@']
    .recipients: "@": invalid domain; a whole domain is written @example.com
kind: block, senders: ['${LOUD}']
    .senders: the content of ${LOUD} is not valid here
kind: subject
    .template: is missing
kind: subject, template: ''
    .template: is empty; expected text such as [Team] {subject}
kind: footer, html: x
    .text: is missing
kind: footer, text: ' '
    : text: is empty
kind: merge, window_s: 0
    .window_s: expected a number from 1 to 86400, found "0"
kind: merge, most: 1
    .most: expected a number from 2 to 1000, found "1"
kind: limit
    : expected at least one of per_recipient, per_domain and per_tunnel
kind: limit, per_domain: 10
    .per_domain: invalid rate; expected a whole number from 1 and s, min, h or day, such as
    10/min
kind: limit, per_domain: '${LOUD}'
    .per_domain: the content of ${LOUD} is not valid here
kind: send, tunnel: 'A B'
    .tunnel: invalid DID "A B": the name of a tunnel has 1 to 64 characters of a-z, 0-9, '-'
    and '_'
kind: spam
    : expected `rules`, `rspamd` or both
kind: spam, rules: []
    : expected `rules`, `rspamd` or both
kind: spam, rules: [{text: a, score: 1}]
    .rules[0].name: is missing
kind: spam, rules: [{name: a, text: b}]
    .rules[0].score: is missing
kind: spam, rules: [{name: a, text: b, score: lots}]
    .rules[0].score: expected a number from -1000000 to 1000000, found "lots"
kind: spam, rules: [{name: a, text: b, score: nan}]
    .rules[0].score: expected a number from -1000000 to 1000000, found "nan"
kind: spam, rules: [{name: a, text: b, score: 1}, {name: b, score: 1}]
    .rules[1]: expected one of subject, text, from, to and header
kind: spam, rules: [{name: a, text: b, to: c, score: 1}]
    .rules[0]: expected one of subject, text, from, to and header
kind: spam, rules: [{name: a, text: '(', score: 1}]
    .rules[0].text: rule a: not a pattern: unclosed group
kind: spam, rules: [{name: a, header: bulk, score: 1}]
    .rules[0].header: header: expected `Name: pattern`
kind: spam, rules: [{name: a, text: b, score: 1}, {name: a, to: c, score: 1}]
    .rules: two rules are named a
kind: spam, threshold: 0, rules: [{name: a, text: b, score: 1}]
    .threshold: expected a number from 0.001 to 1000000, found "0"
"#;

#[test]
fn invalid_workers_are_rejected() {
    let others: [(&str, &str); 1] = [(
        "",
        ": `kind` is missing; expected block, spam, subject, footer, merge, limit, trash, send, \
              deliver, beanstalkd, exec, http or toy",
    )];
    let others = others.map(|(keys, wanted)| (keys, wanted.to_owned()));
    for (keys, wanted) in error_cases(INVALID_WORKERS).into_iter().chain(others) {
        let said = bad(&format!("workers: {{w: {{{keys}}}}}"));
        assert_eq!(said, format!("courier.pipeline.workers.w{wanted}"), "{keys}");
    }
}

/// Each line is followed by the error that it causes.
const INVALID_EXTERNAL_WORKERS: &str = r#"
kind: exec
    .command: is missing
kind: exec, command: []
    .command: expected a program and its arguments
kind: exec, command: ['', a]
    .command: expected a program and its arguments
kind: exec, command: [bin/w]
    .command: expected an absolute path, ~/…, or a program found in PATH
kind: exec, command: [./w]
    .command: expected an absolute path, ~/…, or a program found in PATH
kind: exec, command: [w, "a\0b"]
    .command: contains a NUL character
kind: exec, command: [w], memory_mb: 15
    .memory_mb: expected a number from 16 to 65536, found "15"
kind: exec, command: [w], parallel: 65
    .parallel: expected a number from 1 to 64, found "65"
kind: exec, command: [w], timeout_s: 3601
    .timeout_s: expected a number from 1 to 3600, found "3601"
kind: exec, command: [w], retries: 101
    .retries: expected a number from 0 to 100, found "101"
kind: exec, command: [w], when_down: hodl
    .when_down: expected hold, skip or dead, found "hodl"; did you mean hold?
kind: exec, command: [w], readdress: 1
    .readdress: expected true or false, found "1"
kind: http, secret: '${WORKER_SECRET}'
    .url: is missing
kind: http, url: 'https://example.com'
    .secret: missing or empty; set it to the secret that the worker verifies signatures with
kind: http, url: 'https://example.com', secret: '${EMPTY}'
    .secret: missing or empty; set it to the secret that the worker verifies signatures with
kind: http, url: 'https://example.com', secret: '${LOUD}'
    : secret: not a secret of Standard Webhooks; expected base64 of 16 bytes or more, with or
    without the prefix whsec_ (`openssl rand -base64 32` creates one)
kind: http, url: 'http://example.com', secret: '${WORKER_SECRET}'
    .url: expected https://; http:// is for hosts of your own network, and then set allow_private:
    true
kind: http, url: 'https://127.0.0.1', secret: '${WORKER_SECRET}'
    .url: 127.0.0.1 is an address of this machine or a private network; if that is meant, set
    allow_private: true
kind: http, url: 'ftp://hunter2@${LOUD}/hunter2', secret: '${WORKER_SECRET}'
    .url: not a valid URL with the content of its variables; expected one like
    https://example.com/hook, and allow_private: true for a host of your own network
kind: spam, rspamd: 'http://10.0.0.1:11333', allow_private: true
    .rspamd: http:// is only allowed for an rspamd on this machine; use https://
kind: spam, rspamd: 'http://127.0.0.1.example.com'
    .rspamd: http:// is only allowed for an rspamd on this machine; use https://
kind: spam, rspamd: 'http://localhost@example.com', allow_private: true
    .rspamd: leave out what stands before the @: names and passwords in a URL end up in logs
kind: spam, rspamd: 'http:localhost/checkv2'
    .rspamd: expected only a host and a port, such as http://127.0.0.1:11333
kind: spam, rspamd: localhost
    .rspamd: not a URL (relative URL without a base); expected one such as https://example.com/hook
kind: spam, rspamd: 'HTTP://10.0.0.1', allow_private: true
    .rspamd: http:// is only allowed for an rspamd on this machine; use https://
kind: spam, rspamd: 'http://localhost:11333/checkv2'
    .rspamd: expected only a host and a port, such as http://127.0.0.1:11333
kind: spam, rspamd: 'https://10.0.0.1'
    .rspamd: 10.0.0.1 is an address of this machine or a private network; if that is meant,
    set allow_private: true
kind: spam, rspamd: 'http://localhost', password: "a\nb"
    .password: expected printable ASCII: the password is sent as a header
kind: beanstalkd, server: localhost
    .server: "localhost" is not the address of a beanstalkd: it does not start with
    beanstalkd://; expected beanstalkd://host:port
kind: beanstalkd, tube: 'a b'
    .tube: "a b" is not the name of a tube; expected 1 to 200 characters of A-Z a-z 0-9 - + /
    ; . $ _ ( ), not starting with -
kind: beanstalkd, in_flight: 0
    .in_flight: expected a number from 1 to 10000, found "0"
kind: beanstalkd, tube: monoco.results
    .tube: monoco.results is the results tube of worker w; use another one
kind: beanstalkd, tube: monoco.letters
    .tube: monoco.letters is the tube of the dispatcher; use another one
kind: beanstalkd, results: monoco.letters
    .results: monoco.letters is the tube of the dispatcher; use another one
"#;

#[test]
fn invalid_external_workers_are_rejected() {
    for (keys, wanted) in error_cases(INVALID_EXTERNAL_WORKERS) {
        let said = bad(&format!("workers: {{w: {{{keys}}}}}"));
        assert_eq!(said, format!("courier.pipeline.workers.w{wanted}"), "{keys}");
    }
}

#[test]
fn invalid_queue_names_tubes_and_keys_are_rejected() {
    for (pipeline, wanted) in [
        (
            "queue: redis",
            "courier.pipeline.queue: expected store or beanstalkd://host:port, found \"redis\"",
        ),
        (
            "queue: '${LOUD}'",
            "courier.pipeline.queue: expected store or beanstalkd://host:port, found \"${LOUD}\"",
        ),
        (
            "queue: 'redis://x'",
            "courier.pipeline.queue: \"redis://x\" is not the address of a beanstalkd: it does not \
          start with beanstalkd://; expected beanstalkd://host:port",
        ),
        (
            "workers: {Tagger: {kind: exec, command: [a]}}",
            "courier.pipeline.workers.Tagger: the name of a worker has 1 to 64 characters of a-z, \
          0-9, - and _, and starts with a letter or digit",
        ),
        (
            "workers: {spam: {kind: exec, command: [a]}}",
            "courier.pipeline.workers.spam: a worker named spam has kind spam, but `kind` is exec; \
          use another name",
        ),
        (
            "workers: {a: {kind: beanstalkd, tube: t}, b: {kind: beanstalkd, tube: t}}",
            "courier.pipeline.workers.b.tube: t is already the tube of worker a; use another one",
        ),
        (
            "workers: {a: {kind: beanstalkd, tube: t}, b: {kind: beanstalkd, results: t}}",
            "courier.pipeline.workers.a.tube: t is the results tube of worker b; use another one",
        ),
    ] {
        assert_eq!(bad(pipeline), wanted, "{pipeline}");
    }
    for (pipeline, wanted) in [
        ("inboud: []", "unknown key `inboud`; did you mean `inbound`?"),
        ("tunnels: {ci: {inbond: []}}", "unknown key `inbond`; did you mean `inbound`?"),
        ("workers: {w: {comand: [a]}}", "unknown key `comand`; did you mean `command`?"),
        (
            "workers: {spam: {rules: [{titel: a}]}}",
            "unknown key `titel`; known keys are name, score",
        ),
        ("inbound: deliver", "expected a list here"),
        ("workers: [a]", "expected keys and values here"),
        ("workers: {spam: {rules: {a: 1}}}", "expected a list here"),
        ("workers: {subject: {template: [a]}}", "expected a single value here"),
        ("tunnels: {'A B': {inbound: []}}", "courier.pipeline.tunnels.A B: "),
        ("workers: {w: {kind: send}, w: {kind: send}}", "duplicate key `w`"),
    ] {
        let said = bad(pipeline);
        assert!(said.contains(wanted), "{pipeline}\nsaid   {said}\nwanted {wanted}");
    }
    // The same name on another server is another tube.
    good(
        "workers: {a: {kind: beanstalkd, tube: t}, \
          b: {kind: beanstalkd, tube: t, server: 'beanstalkd://b'}}",
    );
}
