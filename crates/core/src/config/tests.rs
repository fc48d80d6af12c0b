//! Tests of reading values: text as it is in the file, variables, places of errors.

use super::*;

struct TestEnvironment;

impl ConfigEnvironment for TestEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "A" => Some("${B}".to_owned()),
            "B" => Some("x: [y".to_owned()),
            "EMPTY" => Some(String::new()),
            "HOME" => Some("/home/ann".to_owned()),
            _ => None,
        }
    }

    fn read_secret_file(&self, path: &Path) -> Result<Secret, String> {
        match path.to_str() {
            Some("/home/ann/secret") => Ok(Secret::new("from-file")),
            _ => Err(format!("cannot read {}: no such file", path.display())),
        }
    }
}

fn read<T>(
    yaml: &str,
    reader: impl FnOnce(&ConfigSection<'_>) -> Result<T, InvalidConfig>,
) -> Result<T, String> {
    let file = ConfigFile::parse(yaml).map_err(|error| error.to_string())?;
    file.root(&TestEnvironment).and_then(|root| reader(&root)).map_err(|error| error.to_string())
}

fn expand(raw: &str) -> Result<String, String> {
    let value = ConfigValue { path: "key".to_owned(), raw, environment: &TestEnvironment };
    value.text().map_err(|error| error.to_string())
}

#[test]
fn variables_are_expanded_once_and_escapes_are_not() {
    for (raw, text) in [
        ("plain $A $$ $", "plain $A $$ $"),
        ("${B}", "x: [y"),
        ("<${A}${B}>", "<${B}x: [y>"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-}", ""),
        ("${NONE:-a b}c", "a bc"),
        ("${B:-d}", "x: [y"),
    ] {
        assert_eq!(expand(raw).as_deref(), Ok(text), "{raw}");
    }
}

#[test]
fn expansion_errors_name_the_variable_and_show_no_content() {
    for (raw, why) in [
        ("${NONE}", "key: the variable NONE is not set"),
        ("${A} ${NONE}", "key: the variable NONE is not set"),
        ("${A", "without `}`"),
        ("${}", "takes the name"),
        ("${1A}", "takes the name"),
        ("${A B}", "takes the name"),
        ("${A?x}", "takes the name"),
    ] {
        let error = expand(raw).unwrap_err();
        assert!(error.contains(why) && !error.contains("[y"), "{raw}: {error}");
    }
}

#[test]
fn scalars_keep_the_text_of_the_file() {
    for (yaml, text) in [
        ("k: 80.50", Some("80.50")),
        ("k: 007", Some("007")),
        ("k: 0x1F", Some("0x1F")),
        ("k: +1_000", Some("+1_000")),
        ("k: 1e3 # comment", Some("1e3")),
        ("k: .nan", Some(".nan")),
        ("k: 1e999", Some("1e999")),
        ("k: '.inf'", Some(".inf")),
        ("k: True", Some("True")),
        ("{k: false}", Some("false")),
        ("{k: -1, l: 2}", Some("-1")),
        ("\u{feff}k: 12345678901234567890123", Some("12345678901234567890123")),
        ("# é\nk: 5\n", Some("5")),
        ("k: yes", Some("yes")),
        ("k: '5'", Some("5")),
        ("k: \"a\\nb\"", Some("a\nb")),
        ("k: |\n  two\n  lines\n", Some("two\nlines\n")),
        ("k: ''", Some("")),
        ("k:", None),
        ("k: ~", None),
        ("k: null", None),
        ("l: 1", None),
        ("", None),
    ] {
        let found = read(yaml, |root| Ok(root.value("k")?.map(|value| value.raw().to_owned())));
        assert_eq!(found.as_ref().map(Option::as_deref), Ok(text), "{yaml}");
    }
}

#[test]
fn errors_name_the_key_or_the_line() {
    let number = |root: &ConfigSection<'_>| root.section("a")?.number_or("b", 1..=5_u8, 3);
    assert_eq!(read("a: {b: 4}", number), Ok(4));
    assert_eq!(read("a:", number), Ok(3));
    for (yaml, error) in [
        ("a: {b: 6}", "a.b: expected a number from 1 to 5, found \"6\""),
        ("a:\n  b: [1]", "line 2, column 6: expected a single value here"),
        ("a: 1", "line 1, column 4: expected keys and values here"),
        ("- 1", "line 1, column 1: expected keys and values here"),
        ("a: {b: 1, b: 2}", "line 1, column 11: duplicate key `b`"),
    ] {
        assert_eq!(read(yaml, number), Err(error.to_owned()), "{yaml}");
    }
    let words = |root: &ConfigSection<'_>| root.one_of("k", &[("hold", 1), ("drop", 2)]);
    let error = "k: expected hold or drop, found \"hodl\"; did you mean hold?";
    assert_eq!(read("k: hodl", words), Err(error.to_owned()));
}

#[test]
fn unknown_keys_are_reported_with_the_nearest_known_one() {
    let keys = |root: &ConfigSection<'_>| {
        root.section("a")?.with_shared_keys(&["enabled"]).deny_unknown_keys(&["secret", "port"])
    };
    assert_eq!(read("a: {enabled: 1, port: 2, secret: 3}", keys), Ok(()));
    for (yaml, error) in [
        ("a:\n  secrt: 1", "line 2, column 3: unknown key `secrt`; did you mean `secret`?"),
        ("a: {enable: 1}", "line 1, column 5: unknown key `enable`; did you mean `enabled`?"),
        (
            "a: {zzzzzz: 1}",
            "line 1, column 5: unknown key `zzzzzz`; known keys are enabled, secret, port",
        ),
    ] {
        assert_eq!(read(yaml, keys), Err(error.to_owned()), "{yaml}");
    }
}

#[test]
fn lists_may_hold_values_or_sections() {
    let values = |root: &ConfigSection<'_>| {
        let values = root.values("k")?;
        values.map(|all| all.iter().map(ConfigValue::text).collect()).transpose()
    };
    assert_eq!(read("k: [1, a]", values), Ok(Some(vec!["1".to_owned(), "a".to_owned()])));
    assert_eq!(read("k: []", values), Ok(Some(Vec::new())));
    assert_eq!(read("k:", values), Ok(None));
    assert_eq!(read("k: a", values), Err("line 1, column 4: expected a list here".to_owned()));
    let names = |root: &ConfigSection<'_>| {
        root.sections("k")?
            .iter()
            .map(|rule| rule.required("name")?.text())
            .collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(read("k: [{name: a}, {name: b}]", names), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(read("k: [{name: a}, {}]", names), Err("k[1].name: is missing".to_owned()));
}

#[test]
fn a_secret_is_read_in_place_or_from_a_file() {
    let secret = |root: &ConfigSection<'_>| Ok(root.secret("pass")?.expose().to_owned());
    assert_eq!(read("pass: '${B}'", secret).as_deref(), Ok("x: [y"));
    assert_eq!(read("pass_file: ~/secret", secret).as_deref(), Ok("from-file"));
    assert_eq!(read("", secret).as_deref(), Ok(""));
    for (yaml, error) in [
        ("pass_file: secret", "pass_file: expected an absolute path"),
        ("pass_file: /nowhere", "pass_file: cannot read /nowhere"),
        ("{pass: a, pass_file: /b}", "pass_file: `pass` is set as well; set only one of them"),
    ] {
        let found = read(yaml, secret).unwrap_err();
        assert!(found.starts_with(error), "{yaml}: {found}");
    }
}

#[test]
fn a_secret_can_come_from_a_command() {
    let source = |root: &ConfigSection<'_>| root.secret_source("pass");
    let value = |text: &str| Ok(Some(SecretSource::Value(Secret::new(text))));
    let command = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(Some(SecretSource::Command(words)))
    };
    assert_eq!(read("", source), Ok(None));
    assert_eq!(read("pass: a", source), value("a"));
    assert_eq!(read("pass_file: ~/secret", source), value("from-file"));
    assert_eq!(
        read("pass_command: [~/bin/get, a b]", source),
        command(&["/home/ann/bin/get", "a b"])
    );
    assert_eq!(
        read("pass_command: pass show mail", source),
        command(&["/bin/sh", "-c", "pass show mail"])
    );
    for (yaml, error) in [
        ("{pass: a, pass_command: b}", "pass_command: `pass` is set as well; set only one"),
        ("{pass_file: /a, pass_command: b}", "pass_command: `pass_file` is set as well"),
        ("pass_command: []", "pass_command: expected a command that prints the secret"),
        ("pass_command: [a, '']", "pass_command: expected a command that prints the secret"),
        ("pass_command: ' '", "pass_command: expected a command that prints the secret"),
        ("pass_command: {a: b}", "line 1, column 15: expected a single value"),
    ] {
        let found = read(yaml, source).unwrap_err();
        assert!(found.starts_with(error), "{yaml}: {found}");
    }
}

#[test]
fn checks_do_not_repeat_the_content_of_variables() {
    let checked = |root: &ConfigSection<'_>| {
        root.required("k")?.checked(|text| Err::<(), _>(format!("bad: {text}")))
    };
    assert_eq!(read("k: a", checked), Err("k: bad: a".to_owned()));
    assert_eq!(
        read("k: '${B}'", checked),
        Err("k: the content of ${B} is not valid here".to_owned())
    );
}
