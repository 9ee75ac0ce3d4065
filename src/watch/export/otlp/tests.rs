use std::collections::BTreeMap;
use std::fs;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric::Data, number_data_point};

use super::*;
use crate::watch::export::fake_server::{Asked, FakeServer, job_in, lines, tell};
use crate::watch::export::outbox::Outbox;

fn server() -> FakeServer {
    FakeServer::start(|asked| match asked.path.as_str() {
        "/v1/metrics" | "/v1/traces" => (200, Vec::new()),
        other => panic!("{other}"),
    })
}

fn told(server: &FakeServer, folder: &Path, lines: &[MetricsLine]) {
    let job = job_in(folder);
    let exporter = Otlp::new(&server.address, &job, folder, Clock::new(folder, 2)).unwrap();
    tell(Outbox::start(exporter).unwrap(), lines, folder).unwrap();
}

/// Name and text of each.
fn attributes(given: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    given.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

/// The values of a metric in their order, the attributes of the last one, and whether it is a sum.
type Metric = (Vec<f64>, BTreeMap<String, String>, bool);

/// By name.
fn metrics(asked: &[Asked]) -> BTreeMap<String, Metric> {
    let mut found = BTreeMap::new();
    for asked in asked.iter().filter(|asked| asked.path == "/v1/metrics") {
        let request = ExportMetricsServiceRequest::decode(asked.body.as_slice()).unwrap();
        let [of_resource] = request.resource_metrics.as_slice() else { panic!("{request:?}") };
        let resource = attributes(&of_resource.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "pstrain");
        for metric in &of_resource.scope_metrics[0].metrics {
            let (points, is_sum): (&[NumberDataPoint], _) = match metric.data.as_ref().unwrap() {
                Data::Gauge(gauge) => (&gauge.data_points, false),
                Data::Sum(sum) => (&sum.data_points, sum.is_monotonic),
                other => panic!("{other:?}"),
            };
            let entry: &mut (Vec<f64>, _, bool) =
                found.entry(metric.name.clone()).or_insert_with(|| (Vec::new(), BTreeMap::new(), is_sum));
            for point in points {
                let Some(number_data_point::Value::AsDouble(value)) = point.value else {
                    panic!("{point:?}")
                };
                assert!(point.time_unix_nano > 0 && (!is_sum || point.start_time_unix_nano > 0));
                entry.0.push(value);
                entry.1 = attributes(&point.attributes);
            }
        }
    }
    found
}

fn spans(asked: &[Asked]) -> Vec<Span> {
    let traces = asked.iter().filter(|asked| asked.path == "/v1/traces");
    let requests = traces.map(|asked| ExportTraceServiceRequest::decode(asked.body.as_slice()).unwrap());
    let scopes =
        requests.flat_map(|request| request.resource_spans).flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

#[test]
fn figures_are_points_with_their_rank_and_sums_grow() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    told(&server, folder.path(), &lines());
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.headers["content-type"] == "application/x-protobuf"));
    let metrics = metrics(&asked);
    let (loss, of, is_sum) = &metrics["pstrain.train.loss"];
    assert!(loss[0] == 0.5 && loss[1].is_nan() && loss.len() == 2 && !is_sum, "{loss:?}");
    assert_eq!((of["pstrain.rank"].as_str(), of["pstrain.role"].as_str()), ("1", "trainer"));
    assert_eq!(
        (metrics["pstrain.train.steps"].0.as_slice(), metrics["pstrain.train.steps"].2),
        (&[5.0, 10.0][..], true)
    );
    assert_eq!(metrics["pstrain.memory.usage"].0, [1_048_576.0, 2_097_152.0]);
    // Half a core for 2 s, then a whole one for 4 s.
    assert_eq!(
        (metrics["pstrain.cpu.time"].0.as_slice(), metrics["pstrain.cpu.time"].2),
        (&[1.0, 5.0][..], true)
    );
    let (forward, of, _) = &metrics["pstrain.activity.time"];
    assert_eq!((forward.as_slice(), of["pstrain.activity"].as_str()), (&[0.5, 0.75][..], "forward"));
    assert_eq!(metrics["pstrain.eval.accuracy"].0, [0.5]);
}

#[test]
fn a_run_is_a_trace_with_its_epochs_and_validations() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    let begun = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let job = job_in(folder.path());
    let file = fs::File::options().write(true).open(folder.path().join(run_folder::JOB)).unwrap();
    file.set_modified(begun).unwrap();
    let exporter = Otlp::new(&server.address, &job, folder.path(), Clock::new(folder.path(), 2)).unwrap();
    tell(Outbox::start(exporter).unwrap(), &lines(), folder.path()).unwrap();
    let spans = spans(&server.asked());
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let (run, epoch, validation) = (of("train digits_ps"), of("epoch 1"), of("validation"));
    assert_eq!(spans.len(), 3);
    assert!(run.parent_span_id.is_empty() && run.trace_id.len() == 16 && run.span_id.len() == 8);
    for child in [epoch, validation] {
        assert_eq!((&child.trace_id, &child.parent_span_id), (&run.trace_id, &run.span_id));
        assert!(child.start_time_unix_nano >= run.start_time_unix_nano, "{child:?}");
        assert!(child.end_time_unix_nano <= run.end_time_unix_nano, "{child:?}");
    }
    let seconds = |span: &Span| (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9;
    // Other ranks told of 6 s when it was over, and the loop had stood still since its 3rd.
    assert!((seconds(validation) - 3.0).abs() < 0.001, "{}", seconds(validation));
    assert!((seconds(epoch) - 3.0).abs() < 0.001 && (seconds(run) - 6.0).abs() < 0.001);
    assert_eq!(attributes(&validation.attributes)["pstrain.eval.accuracy"], "0.5");
    // It has no summary: 2 is an error.
    assert_eq!(run.status.as_ref().unwrap().code, 2);
}

#[test]
fn what_was_told_is_not_told_again_and_the_trace_stays_the_same() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    let lines = lines();
    told(&server, folder.path(), &lines[..5]);
    let first = server.asked();
    told(&server, folder.path(), &lines);
    let second = server.asked();
    assert_eq!(spans(&first)[0].trace_id, spans(&second)[0].trace_id);
    assert!(!metrics(&second).contains_key("pstrain.train.loss"));
    assert!(metrics(&second).contains_key("pstrain.eval.accuracy"));
    told(&server, folder.path(), &lines);
    assert!(server.asked().is_empty());
}

#[test]
fn of_a_profile_the_longest_spans_of_each_rank_are_told() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    let event = |at: u32, rank: u32| {
        format!(
            r#"{{"ph":"X","name":"forward","cat":"forward","pid":{rank},"tid":1,"ts":{},"dur":{}}}"#,
            at * 1000,
            at + 1
        )
    };
    let named = r#"{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0: ps"}}"#;
    let events = (0..300).flat_map(|at| [event(at, 0), event(at, 1)]);
    let events: Vec<String> = [named.to_owned()].into_iter().chain(events).collect();
    let text = format!("{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\"}}", events.join(",\n"));
    fs::write(folder.path().join(run_folder::TRACE), text).unwrap();
    told(&server, folder.path(), &lines());
    let spans = spans(&server.asked());
    let forward: Vec<_> = spans.iter().filter(|span| span.name == "forward").collect();
    assert_eq!(forward.len(), 400);
    let took = |span: &&&Span| span.end_time_unix_nano - span.start_time_unix_nano;
    // The shortest of the 200 longest took 101 us. A second as a float64 of this century is good to 0.3 us.
    assert!(took(&forward.iter().min_by_key(took).unwrap()) > 100_000);
}

#[test]
fn headers_are_those_of_opentelemetrys_own_exporters() {
    let headers = |text: &str| parse_headers(text).unwrap();
    assert_eq!(
        headers("Authorization=Basic%20YTpi, x-scope=1=2,"),
        [("authorization".to_owned(), "Basic YTpi".to_owned()), ("x-scope".into(), "1=2".into())]
    );
    assert!(headers("").is_empty());
    for wrong in ["token", "=1", "a b=1", "a=%0d%0ab"] {
        let told = parse_headers(wrong).unwrap_err().to_string();
        assert!(told.starts_with(HEADERS), "{told}");
        assert!(!told.contains(wrong), "{told}");
    }
}
