//! Mean squared error as numbers, value and gradient. The configuration, `"none"` or `"sin"`, may ask for a mistake.

use std::sync::Mutex;

use exports::pstrain::plugin::raw_loss::{Buffer, Computed, Guest};
use pstrain::plugin::types::Dtype;

wit_bindgen::generate!({
    path: "../../wit",
    world: "pstrain:plugin/raw-loss-plugin",
    generate_all,
});

static SIN: Mutex<String> = Mutex::new(String::new());

struct Raw;

impl Guest for Raw {
    fn open(config: String) -> Result<(), String> {
        *SIN.lock().expect("one thread") = config.trim_matches('"').to_owned();
        Ok(())
    }

    fn compute(
        outputs: Vec<Buffer>,
        targets: Vec<Buffer>,
        want_gradient: bool,
        want_metrics: bool,
    ) -> Result<Computed, String> {
        let sin = SIN.lock().expect("one thread").clone();
        let ([output], [target]) = (&outputs[..], &targets[..]) else {
            return Err(format!(
                "{} outputs and {} targets; one of each is wanted",
                outputs.len(),
                targets.len()
            ));
        };
        if output.shape != target.shape {
            return Err(format!(
                "the output has the shape {:?}, the target {:?}",
                output.shape, target.shape
            ));
        }
        if sin == "only-float32" && output.dtype != Dtype::Float32 {
            return Err(format!("the output is {:?}; float32 is wanted", output.dtype));
        }
        let (x, y) = (numbers(output)?, numbers(target)?);
        let n = x.len() as f64;
        let factor = if sin == "wrong-gradient" { 2.1 } else { 2.0 };
        let loss = x.iter().zip(&y).map(|(x, y)| (x - y) * (x - y)).sum::<f64>() / n;
        let gradient = x.iter().zip(&y).map(|(x, y)| factor * (x - y) / n);
        let mut gradient: Vec<u8> = match output.dtype {
            Dtype::Float32 => gradient.flat_map(|g| (g as f32).to_le_bytes()).collect(),
            _ => gradient.flat_map(|g| g.to_le_bytes()).collect(),
        };
        if sin == "short-gradient" {
            gradient.pop();
        }
        let gradients = if want_gradient && sin != "no-gradient" { vec![gradient] } else { Vec::new() };
        let metrics = if want_metrics { vec![("rmse".into(), loss.sqrt())] } else { Vec::new() };
        Ok(Computed { loss, gradients, metrics })
    }
}

fn numbers(buffer: &Buffer) -> Result<Vec<f64>, String> {
    match buffer.dtype {
        Dtype::Float32 => {
            Ok(buffer.bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect())
        }
        Dtype::Float64 => Ok(buffer.bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()),
        other => Err(format!("a buffer of {other:?}; floating-point numbers are wanted")),
    }
}

export!(Raw);
