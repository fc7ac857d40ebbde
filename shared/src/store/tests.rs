use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Note {
    text: String,
    marks: Vec<u8>,
}

fn note(text: &str) -> Note {
    Note {
        text: text.to_owned(),
        marks: text.bytes().rev().collect(),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn open(path: &Path) -> StoreTree<Note> {
    LocalStore::open(path)
        .and_then(|store| store.open_tree("notes"))
        .expect("the store opens")
}

fn entries(tree: &StoreTree<Note>) -> BTreeMap<Vec<u8>, Note> {
    tree.range::<&[u8], _>(..)
        .collect::<Result<_, _>>()
        .expect("every entry reads")
}

#[tokio::test]
async fn what_was_flushed_is_there_after_opening_again() {
    let directory = scratch();
    let tree = open(directory.path());
    for text in ["one", "two", "three"] {
        tree.insert(text.as_bytes(), &note(text)).expect("inserted");
    }

    assert!(tree.remove(b"two").expect("removed"));
    assert!(!tree.remove(b"two").expect("nothing left to remove"));

    tree.flush().await.expect("flushed");
    let (entries, bytes) = (tree.len(), tree.bytes());
    drop(tree);

    let tree = open(directory.path());
    assert_eq!((tree.len(), tree.bytes()), (entries, bytes));
    assert_eq!(tree.get(b"three").expect("read"), Some(note("three")));
    assert_eq!(tree.get(b"two").expect("read"), None);
    assert_eq!(tree.first().expect("read"), Some((b"one".to_vec(), note("one"))));
}

#[tokio::test]
async fn callers_that_wait_together_share_a_flush() {
    let directory = scratch();
    let tree = open(directory.path());
    let callers = (0_u32..200).map(|number| {
        let tree = tree.clone();
        tokio::spawn(async move {
            tree.insert(&number.to_be_bytes(), &note("shared")).expect("inserted");
            tree.flush().await.expect("flushed");
        })
    });

    futures_util::future::try_join_all(callers)
        .await
        .expect("no caller panics");
    let flushes = tree.store.shared.flushes_begun.load(Ordering::SeqCst);
    assert!((1..=100).contains(&flushes), "{flushes} flushes for 200 callers");
    assert_eq!(tree.len(), 200);
}

#[tokio::test]
async fn a_flush_that_began_before_the_write_does_not_count() {
    let directory = scratch();
    let store = LocalStore::open(directory.path()).expect("the store opens");
    for expected in 1..=3 {
        store.flush().await.expect("flushed");
        assert_eq!(store.shared.flushes_begun.load(Ordering::SeqCst), expected);
    }
}

#[test]
fn two_handles_of_one_tree_agree_on_its_size() {
    let directory = scratch();
    let store = LocalStore::open(directory.path()).expect("the store opens");
    let (one, other) = (
        store.open_tree::<Note>("notes").expect("opens"),
        store.open_tree::<Note>("notes").expect("opens"),
    );

    one.insert(b"key", &note("a")).expect("inserted");
    other.insert(b"key", &note("longer")).expect("replaced");
    assert_eq!((one.len(), one.bytes()), (1, other.bytes()));
    assert!(store.open_tree::<Note>("others").expect("opens").is_empty());
}

#[test]
fn a_value_of_another_type_is_named() {
    let directory = scratch();
    let store = LocalStore::open(directory.path()).expect("the store opens");
    store
        .open_tree::<u32>("notes")
        .expect("opens")
        .insert(b"key\n", &7)
        .expect("inserted");

    let error = store
        .open_tree::<Note>("notes")
        .expect("opens")
        .get(b"key\n")
        .expect_err("not a note");
    assert!(
        error
            .to_string()
            .starts_with(r"failed to decode the value at key key\n of tree notes"),
        "{error}"
    );
}

#[test]
fn a_store_belongs_to_one_holder() {
    let directory = scratch();
    let _held = open(directory.path());
    let error = LocalStore::open(directory.path()).expect_err("held");
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
}

#[test]
fn a_full_disk_is_told_apart() {
    let check = |kind: io::ErrorKind, expected: &str| {
        let error = open_error(Path::new("/spool"), sled::Error::Io(kind.into()));
        assert_eq!(error.to_string(), expected);
    };
    check(io::ErrorKind::StorageFull, "disk full at /spool");
    check(io::ErrorKind::QuotaExceeded, "disk full at /spool");
    check(io::ErrorKind::PermissionDenied, "failed to read or write /spool");
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u8, String),
    Remove(u8),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u8..24, ".{0,12}").prop_map(|(key, text)| Step::Insert(key, text)),
        3 => (0_u8..24).prop_map(Step::Remove),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_tree_is_a_sorted_map_that_knows_its_size(steps in steps()) {
        let directory = scratch();
        let (mut tree, mut map) = (open(directory.path()), BTreeMap::new());
        for step in steps {
            match step {
                Step::Insert(key, text) => {
                    tree.insert(&[key], &note(&text)).expect("inserted");
                    map.insert(vec![key], note(&text));
                }
                Step::Remove(key) => {
                    let removed = tree.remove(&[key]).expect("removed");
                    prop_assert_eq!(removed, map.remove([key].as_slice()).is_some());
                }
                Step::Reopen => {
                    drop(tree);
                    tree = open(directory.path());
                }
            }
        }
        prop_assert_eq!(tree.len(), map.len() as u64);
        prop_assert_eq!(tree.first().expect("read"), map.clone().into_iter().next());
        prop_assert_eq!(entries(&tree), map);
    }
}
