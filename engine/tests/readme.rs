//! README shows code that is compiled and run: it is a part of the example, word for word.

use std::fs;
use std::path::Path;

#[test]
fn the_embedding_section_is_a_part_of_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("../README.md")).expect("README.md");
    let example = fs::read_to_string(root.join("examples/request_reply.rs")).expect("the example");
    let (_, section) = readme
        .split_once("## In a program of yours")
        .expect("the section");
    let (_, code) = section.split_once("```rust\n").expect("code");
    let (code, _) = code.split_once("\n```").expect("its end");
    assert!(code.lines().count() > 20, "{code}");
    assert!(example.contains(code), "README and the example differ");
}
