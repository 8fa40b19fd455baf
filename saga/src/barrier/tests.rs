use super::*;

#[test]
fn the_action_of_a_compensation() {
    let check = |key: &str, action: Option<&str>| {
        let found = undone(&key.parse().unwrap());
        assert_eq!(found.ok().as_ref().map(Key::as_str), action, "{key}");
    };
    check("o-1:reserve:undo", Some("o-1:reserve"));
    check("o-1:undo", Some("o-1"));
    check("o-1:reserve", None);
    check("undo", None);
}

#[test]
fn names() {
    for name in ["", "a b", "ä", &"n".repeat(256)] {
        assert!(Barrier::new(name).is_err(), "{name}");
    }
    assert!(Barrier::new("stock-service:reserve").is_ok());
}

#[test]
fn an_answer_that_is_not_known_is_an_error() {
    let barrier = Barrier::new("stock-service:reserve").unwrap();
    let known = || [("undo", 1), ("wait", 2), ("nothing", 3)];
    assert_eq!(barrier.meaning(Some("wait".to_owned()), known()).unwrap(), 2);
    for answer in [None, Some("later".to_owned())] {
        let error = barrier.meaning(answer.clone(), known()).unwrap_err();
        let expected = format!("the barrier \"stock-service:reserve\" got the answer {answer:?},");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}
