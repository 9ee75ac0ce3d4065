//! Layers as a job writes them: their shapes and sizes, and why some are refused.

use crate::job::{self, JobErrors, JobText, ModuleSpec, Sources};
use crate::layers::{InputDtype, Signal, infer, size};

/// A module of these layers, or why there is none.
fn module(layers: &str, input: &[i64], dtype: &str) -> Result<ModuleSpec, JobErrors> {
    let text = format!(
        "[roles]\nserver = 1\ntrainer = 1\n[data]\nplugin = \"own.wasm\"\n[loss]\nplugin = \"mse\"\n\
         [optimizer]\ntype = \"sgd\"\n\
         [modules.net]\nplace = \"server\"\ninput = {input:?}\ninput_dtype = \"{dtype}\"\nlayers = {layers}\n"
    );
    let file = JobText { name: "x.toml", text: &text };
    let resolved = job::load(&Sources { file, env: Vec::new(), overrides: &[] })?;
    let training = resolved.job.training().expect("it trains");
    Ok(training.modules.first().expect("one module").clone())
}

fn output(layers: &str, input: &[i64]) -> Vec<i64> {
    let module = module(layers, input, "float32").unwrap_or_else(|errors| panic!("{errors}"));
    let outputs = infer(module.layers(), &[Signal::new(input, InputDtype::Float32)]);
    outputs.output().expect("proven").shape.clone()
}

fn refusal(layers: &str, input: &[i64], dtype: &str) -> String {
    match module(layers, input, dtype) {
        Ok(module) => panic!("{layers} proves for {input:?}: {module:?}"),
        Err(errors) => errors.to_string(),
    }
}

/// The cases and their answers are PyTorch's own: see pytorch.py.
#[test]
fn shapes_and_sizes_are_those_of_pytorch() {
    type Case = (String, Vec<i64>, String, Option<Vec<i64>>, u64, u64);
    let cases: Vec<Case> = serde_json::from_str(include_str!("pytorch.json")).expect("cases");
    assert!(cases.len() > 300);
    for (layer, input, dtype, expected, parameters, buffers) in cases {
        let proven = module(&format!("[{layer}]"), &input, &dtype);
        match (proven, expected) {
            (Ok(module), Some(expected)) => {
                let outputs = infer(module.layers(), &[Signal::new(&input, module.inputs[0].dtype)]);
                assert_eq!(outputs.output().expect("proven").shape, expected, "{layer} of {input:?}");
                let op = &module.layers()[0].op;
                assert_eq!(size::parameters(op), parameters, "{layer}");
                assert_eq!(size::buffer_bytes(op), buffers, "{layer}");
            }
            (Err(_), None) => {}
            (Ok(_), None) => panic!("PyTorch refuses {layer} for {input:?}"),
            (Err(errors), Some(expected)) => {
                panic!("PyTorch gives {expected:?} for {layer} of {input:?}\n{errors}")
            }
        }
    }
}

#[test]
fn a_residual_gives_what_it_takes() {
    let block = r#"[{ type = "residual", name = "block", layers = [
        { type = "conv2d", in_channels = 4, out_channels = 4, kernel_size = 3, padding = 1 },
        { type = "residual", layers = ["relu"] },
    ] }]"#;
    assert_eq!(output(block, &[4, 6, 6]), [4, 6, 6]);
}

#[test]
fn a_reshape_fills_in_what_is_left() {
    assert_eq!(output(r#"[{ type = "reshape", shape = [2, -1] }]"#, &[3, 4]), [2, 6]);
    assert_eq!(output(r#"[{ type = "reshape", shape = [12] }]"#, &[3, 4]), [12]);
}

#[test]
fn one_mismatch_does_not_hide_the_next() {
    let layers = r#"[
        { type = "conv2d", name = "conv1", in_channels = 3, out_channels = 8, kernel_size = 3 },
        "flatten",
        { type = "linear", name = "fc", in_features = 100, out_features = 10 },
    ]"#;
    insta::assert_snapshot!(refusal(layers, &[1, 28, 28], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[0]`: conv2d `conv1` expects 3 channels (in_channels); [1, 28, 28] comes from the module's input
      from: x.toml, line 15
      hint: write in_channels = 1
    error: job `x.toml`: `modules.net.layers[2]`: linear `fc` expects 100 features (in_features) in the last dimension; [5408] comes from flatten `1`
      from: x.toml, line 17
      hint: write in_features = 5408
    ");
}

#[test]
fn a_mismatch_inside_a_residual_names_the_way_to_it() {
    let layers = r#"["relu", { type = "residual", name = "block", layers = [
        { type = "linear", name = "fc", in_features = 8, out_features = 9 },
    ] }]"#;
    insta::assert_snapshot!(refusal(layers, &[7], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[1]`: residual `block` expects its layers to output the shape of their input, and they output [9]; [7] comes from relu `0`
      from: x.toml, line 14
      hint: let them end in [7], so that it can be added to the input
    error: job `x.toml`: `modules.net.layers[1].layers[0]`: linear `fc` expects 8 features (in_features) in the last dimension; [7] comes from relu `0`
      from: x.toml, line 15
      hint: write in_features = 7
    ");
}

#[test]
fn images_that_were_not_flattened_are_told_so() {
    let layers = r#"[{ type = "linear", in_features = 784, out_features = 10 }]"#;
    insta::assert_snapshot!(refusal(layers, &[1, 28, 28], "float32"), @r#"
    error: job `x.toml`: `modules.net.layers[0]`: linear `0` expects 784 features (in_features) in the last dimension; [1, 28, 28] comes from the module's input
      from: x.toml, line 14
      hint: put "flatten" before it
    "#);
    let layers = r#"[{ type = "conv2d", in_channels = 1, out_channels = 8, kernel_size = 3 }]"#;
    insta::assert_snapshot!(refusal(layers, &[28, 28], "float32"), @r#"
    error: job `x.toml`: `modules.net.layers[0]`: conv2d `0` expects [1, height, width]; [28, 28] comes from the module's input
      from: x.toml, line 14
      hint: put { type = "reshape", shape = [1, 28, 28] } before it
    "#);
}

#[test]
fn whole_numbers_go_into_embeddings_and_nowhere_else() {
    let embedding = r#"[{ type = "embedding", num_embeddings = 100, embedding_dim = 16 }]"#;
    insta::assert_snapshot!(refusal(embedding, &[20], "float32"), @r#"
    error: job `x.toml`: `modules.net.layers[0]`: embedding `0` expects indices of int64; [20] comes from the module's input
      from: x.toml, line 14
      hint: set input_dtype = "int64" in the module, and let the embedding be its first layer
    "#);
    let linear = r#"["flatten", { type = "linear", in_features = 20, out_features = 10 }]"#;
    insta::assert_snapshot!(refusal(linear, &[20], "int64"), @r#"
    error: job `x.toml`: `modules.net.layers[1]`: linear `1` expects float32; [20] of int64 comes from flatten `0`
      from: x.toml, line 14
      hint: put an embedding before it, or set input_dtype = "float32"
    "#);
}

#[test]
fn a_kernel_larger_than_what_is_left_is_refused() {
    let layers = r#"[{ type = "max_pool2d", kernel_size = 2 }, { type = "max_pool2d", kernel_size = 3 }]"#;
    insta::assert_snapshot!(refusal(layers, &[1, 5, 4], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[1]`: max_pool2d `1` expects a height of at least 3 for its kernel of 3; [1, 2, 2] comes from max_pool2d `0`
      from: x.toml, line 14
      hint: use a smaller kernel_size, more padding, or fewer layers that shrink the sample before it
    ");
}

#[test]
fn the_batch_is_kept_out_of_softmax_and_flatten() {
    insta::assert_snapshot!(refusal(r#"[{ type = "softmax", dim = 0 }]"#, &[10], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[0]`: softmax `0` expects a dimension of the sample, and dim = 0 is the batch; [10] comes from the module's input
      from: x.toml, line 14
      hint: dimension 0 is the batch, whose samples have nothing to do with one another: use dim = 1 or -1
    ");
    insta::assert_snapshot!(refusal(r#"[{ type = "flatten", start_dim = 0 }]"#, &[2, 5], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[0]`: flatten `0` expects to keep the samples apart, and start_dim = 0 is the batch; [2, 5] comes from the module's input
      from: x.toml, line 14
      hint: use start_dim = 1
    ");
    insta::assert_snapshot!(refusal(r#"[{ type = "log_softmax", dim = 2 }]"#, &[10], "float32"), @r"
    error: job `x.toml`: `modules.net.layers[0]`: log_softmax `0` expects dim = 2 to exist among 2 dimensions (the batch is 0); [10] comes from the module's input
      from: x.toml, line 14
      hint: use dim = 1 or -1
    ");
}
