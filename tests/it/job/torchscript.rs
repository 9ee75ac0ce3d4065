//! Modules of TorchScript, and weights, as they are written.

use super::*;

fn script(more: &str) -> String {
    let (before, after) = SOUND.split_once("layers = [").expect("layers");
    let (_, after) = after.split_once("\n]").expect("their end");
    format!("{before}torchscript = \"net.pt\"\n{more}{after}")
}

#[test]
fn torchscript_says_what_it_gives_and_stands_alone() {
    let job = sound(&script("output = [10]"), &[], &["modules.net.weights=a/start.safetensors"]).job;
    let module = &job.training().expect("it trains").modules[0];
    let script_of = module.torchscript().expect("TorchScript");
    assert_eq!(
        (script_of.file.to_str(), script_of.outputs[0].signal.to_string()),
        (Some("net.pt"), "[10]".into())
    );
    assert_eq!(
        module.weights.as_ref().and_then(|weights| weights.path.to_str()),
        Some("a/start.safetensors")
    );
    let all = [
        errors(&script("")),
        errors(&script("output = [0]\noutput_dtype = \"float64\"\ndevices = 2")),
        errors(&script("output = [10]\nlayers = [\"relu\"]")),
        replaced("input = [1, 8, 8]", "input = [1, 8, 8]\noutput = [10]\noutput_dtype = \"int64\""),
        replaced("input = [1, 8, 8]", "input = [1, 8, 8]\nweights = \"\""),
        errors(&script("output = [10]").replace("\"net.pt\"", "7")),
    ];
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn a_module_behind_torchscript_takes_what_it_gives() {
    let behind = |features: u32| {
        let second = format!(
            "\n[modules.head]\nplace = \"server\"\nlayers = [{{ type = \"linear\", in_features = {features}, out_features = 10 }}]\n[data]"
        );
        script("output = [16]")
            .replace("\n[data]", &second)
            .replace("[train]", "[train]\nforward = [\"net\", \"head\"]")
    };
    sound(&behind(16), &[], &[]);
    insta::assert_snapshot!(errors(&behind(20)));
}

#[test]
fn where_the_files_lie_is_no_part_of_the_job_and_what_they_are_called_is() {
    let hash = |settings: &[&str]| sound(&script("output = [10]"), &[], settings).hash;
    assert_eq!(hash(&[]), hash(&["modules.net.torchscript=elsewhere/net.pt"]));
    assert_ne!(hash(&[]), hash(&["modules.net.torchscript=other.pt"]));
    let weights = hash(&["modules.net.weights=a/start.safetensors"]);
    assert_eq!(weights, hash(&["modules.net.weights=b/start.safetensors"]));
    assert_ne!(weights, hash(&[]));
}
