use std::os::unix::fs::{chown, symlink};

use super::*;

const STRANGER: u32 = 4242;

fn with_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// A folder of this user, by its real path.
fn home() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().canonicalize().expect("there");
    (root, path)
}

fn trust() -> Trust {
    Trust { named: Vec::new(), is_private_group: |_, _| false, ..Trust::of_this_process() }
}

fn why(refused: Result<PathBuf, Untrusted>, below: &Path) -> String {
    refused.expect_err("refused").to_string().replace(below.to_str().expect("text"), "HOME")
}

/// OW-1, with a shared folder, a shared file and a link in a shared folder in turn on the way to what would be loaded.
#[test]
fn whatever_is_on_the_way_to_a_file_counts() {
    let (_root, home) = home();
    let deep = home.join("a/b");
    fs::create_dir_all(&deep).expect("made");
    let file = deep.join("code.so");
    fs::write(&file, "").expect("written");
    assert_eq!(trust().walk(&file).expect("trusted"), file);

    for (path, normal) in [(home.join("a"), 0o755), (deep.clone(), 0o755), (file.clone(), 0o644)] {
        for (shared, by) in [(normal | 0o002, "everybody"), (normal | 0o020, "the group")] {
            with_mode(&path, shared);
            let said = why(trust().walk(&file), &home);
            let place = path.display().to_string().replace(home.to_str().expect("text"), "HOME");
            assert!(said.starts_with(&format!("`{place}` can be written by {by}")), "{said}");
        }
        with_mode(&path, normal);
    }
    let shared = home.join("shared");
    fs::create_dir(&shared).expect("made");
    symlink(&file, shared.join("link")).expect("linked");
    assert_eq!(trust().walk(&shared.join("link")).expect("trusted"), file);
    with_mode(&shared, 0o777);
    assert_eq!(why(trust().walk(&shared.join("link")), &home), "`HOME/shared` can be written by everybody");
}

/// OW-1: the last of several links is in a shared folder.
#[test]
fn links_to_links_are_followed_one_by_one() {
    let (_root, home) = home();
    let shared = home.join("shared");
    fs::create_dir(&shared).expect("made");
    fs::write(home.join("code.so"), "").expect("written");
    symlink("../code.so", shared.join("inner")).expect("linked");
    symlink("shared/inner", home.join("outer")).expect("linked");
    assert_eq!(trust().walk(&home.join("outer")).expect("trusted"), home.join("code.so"));
    with_mode(&shared, 0o777);
    assert_eq!(why(trust().walk(&home.join("outer")), &home), "`HOME/shared` can be written by everybody");

    symlink("circle", home.join("circle")).expect("linked");
    assert_eq!(why(trust().walk(&home.join("circle")), &home), "`HOME/circle` is a link to itself");
}

/// OW-2
#[test]
fn another_users_file_is_refused_unless_its_folder_is_named() {
    let (_root, home) = home();
    let me = fs::metadata(&home).expect("there").uid();
    let file = home.join("code.so");
    fs::write(&file, "").expect("written");
    // As somebody else sees it, whose the folders above are not.
    let stranger = Trust {
        me: STRANGER,
        owners: vec![0, STRANGER].into_iter().filter(|&of| of != me).collect(),
        ..trust()
    };
    assert!(matches!(stranger.walk(&file), Err(Untrusted::Owner { owner, .. }) if owner == me));
    let named =
        Trust { named: home.ancestors().map(Path::to_owned).collect(), owners: Vec::new(), ..stranger };
    assert_eq!(named.walk(&file).expect("named"), file);
}

/// OW-3
#[test]
fn a_sticky_folder_may_be_written_by_all_and_not_be_ours() {
    let (_root, home) = home();
    let tmp = home.join("tmp");
    fs::create_dir(&tmp).expect("made");
    with_mode(&tmp, 0o1777);
    fs::write(tmp.join("code.so"), "").expect("written");
    trust().walk(&tmp.join("code.so")).expect("nobody else can replace it");
    private_folder(&tmp.join("mine")).expect("made");
    assert_eq!(why(private_folder(&tmp), &home), "`HOME/tmp` can be written by everybody");
}

/// OW-4
#[test]
fn a_private_group_is_the_owner_alone() {
    let (_root, home) = home();
    let file = home.join("code.so");
    fs::write(&file, "").expect("written");
    with_mode(&file, 0o664);
    assert!(trust().walk(&file).is_err());
    let private = Trust { is_private_group: |_, _| true, ..trust() };
    private.walk(&file).expect("trusted");
}

#[test]
fn a_folder_of_ours_is_for_its_user_alone() {
    let (_root, home) = home();
    let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
    let folder = home.join("a/b");
    assert_eq!(private_folder(&folder).expect("made"), folder);
    assert_eq!([mode(&folder), mode(&home.join("a"))], [0o700, 0o700]);
    // Who can read a file can lock it.
    with_mode(&folder, 0o755);
    private_folder(&folder).expect("made private");
    assert_eq!(mode(&folder), 0o700);

    with_mode(&folder, 0o777);
    assert_eq!(why(private_folder(&folder), &home), "`HOME/a/b` can be written by everybody");
    with_mode(&folder, 0o700);
    symlink(&folder, home.join("link")).expect("linked");
    assert_eq!(
        why(private_folder(&home.join("link")), &home),
        "`HOME/link` is a link, and not a folder of its own"
    );
    fs::write(home.join("file"), "").expect("written");
    assert!(private_folder(&home.join("file")).is_err());
}

/// Who can write a folder above can put another one in its place; and one of somebody else's is his, be he trusted.
#[test]
fn a_folder_below_one_that_others_can_write_or_of_somebody_trusted_is_not_ours() {
    let (_root, home) = home();
    let shared = home.join("shared");
    private_folder(&shared.join("mine")).expect("made");
    with_mode(&shared, 0o777);
    assert_eq!(why(private_folder(&shared.join("mine")), &home), "`HOME/shared` can be written by everybody");
    with_mode(&shared, 0o700);
    let owner = fs::metadata(&shared).expect("there").uid();
    let stranger = Trust { me: STRANGER, ..trust() };
    assert!(stranger.owners.contains(&owner));
    let refused = private(&shared.join("mine"), &stranger);
    assert!(matches!(refused, Err(Untrusted::Owner { owner: found, .. }) if found == owner), "{refused:?}");
}

/// Only root can give a folder away: whoever else runs this sees the same decision in `another_users_file_is_refused`.
#[test]
fn a_folder_that_somebody_else_has_made_is_not_used() {
    let (_root, home) = home();
    let planted = home.join("planted");
    fs::create_dir(&planted).expect("made");
    if chown(&planted, Some(STRANGER), None).is_ok() {
        assert_eq!(why(private_folder(&planted), &home), "`HOME/planted` belongs to the user 4242");
    } else {
        let other = Path::new("/etc");
        assert!(private_folder(other).is_err());
    }
}
