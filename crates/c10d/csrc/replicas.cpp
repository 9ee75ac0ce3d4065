#include "replicas.h"

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <map>
#include <sstream>

namespace replicas {

namespace {

// Python's `broadcast_bucket_size`. Sender and receivers must use the same.
constexpr size_t kBroadcastBytes = 250 * 1024 * 1024;

std::vector<std::string> describe(const std::vector<at::Tensor>& parameters) {
  std::vector<std::string> lines;
  for (const at::Tensor& parameter : parameters) {
    lines.push_back(c10::str(
        parameter.scalar_type(), " ", parameter.sizes(), " with strides ", parameter.strides(), " on ",
        parameter.device().type()));
  }
  return lines;
}

std::vector<uint8_t> join(const std::vector<std::string>& lines) {
  std::vector<uint8_t> bytes;
  for (const std::string& line : lines) {
    bytes.insert(bytes.end(), line.begin(), line.end());
    bytes.push_back('\n');
  }
  return bytes;
}

std::vector<std::string> split(const std::vector<uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string label(size_t index, const std::vector<std::string>& names) {
  return index < names.size() ? c10::str("parameter ", index, " (`", names[index], "`)") : c10::str("parameter ", index);
}

// The first collective of c10d::verify_params_across_processes.
std::vector<int64_t> counts(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::vector<at::Tensor>& parameters) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(parameters[0].device());
  std::vector<at::Tensor> mine{at::full({1}, static_cast<int64_t>(parameters.size()), options)};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    all[0].push_back(at::empty_like(mine[0]));
  }
  group->allgather(all, mine)->wait();
  std::vector<int64_t> found;
  for (const at::Tensor& count : all[0]) {
    found.push_back(count.item<int64_t>());
  }
  return found;
}

// The second one.
bool as_rank_0(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> layout;
  for (const at::Tensor& parameter : parameters) {
    layout.insert(layout.end(), parameter.sizes().begin(), parameter.sizes().end());
    layout.insert(layout.end(), parameter.strides().begin(), parameter.strides().end());
  }
  at::Tensor mine = at::tensor(layout, at::TensorOptions().dtype(at::kLong));
  std::vector<at::Tensor> theirs{mine.to(parameters[0].device(), /*non_blocking=*/false, /*copy=*/true)};
  group->broadcast(theirs)->wait();
  return at::equal(mine, theirs[0].cpu());
}

// What each rank said of its parameters; nothing of a rank that is not ours.
std::map<int, std::vector<std::string>> said(const c10::intrusive_ptr<c10d::Store>& store, int64_t nth, int size) {
  std::map<int, std::vector<std::string>> lines;
  for (int rank = 0; rank < size; ++rank) {
    const std::string key = c10::str("reducer/", nth, "/", rank);
    if (store->check({key})) {
      lines[rank] = split(store->get(key));
    }
  }
  return lines;
}

} // namespace

void verify(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names) {
  const int rank = group->getRank(), size = group->getSize();
  const auto store = group->getStore();
  const std::vector<std::string> mine = describe(parameters);
  // Through the store, because a broadcast among ranks that disagree about its size ends the process. Written before
  // the collective, which then tells each rank that all of ours have written.
  int64_t nth = 0;
  if (store) {
    nth = store->add(c10::str("reducer/made/", rank), 1);
    const std::string key = c10::str("reducer/", nth, "/", rank);
    store->set(key, join(mine));
    // A TCPStore's `set` does not wait for the server, an answer on the same connection does. Were it not there yet, another
    // rank would go on to `as_rank_0`, and this one would not.
    store->get(key);
  }
  const std::vector<int64_t> found = counts(group, parameters);
  for (int other = 1; other < size; ++other) {
    TORCH_CHECK(
        found[other] == found[0], "rank ", other, " has ", found[other], " parameters, rank 0 has ", found[0],
        ": a reducer needs the same model on all ranks");
  }
  std::map<int, std::vector<std::string>> lines;
  if (store) {
    lines = said(store, nth, size);
  }
  const auto first = lines.find(0);
  for (const auto& [other, theirs] : lines) {
    for (size_t i = 0; first != lines.end() && i < theirs.size() && i < first->second.size(); ++i) {
      TORCH_CHECK(
          theirs[i] == first->second[i], label(i, names), " is ", theirs[i], " on rank ", other, " and ",
          first->second[i], " on rank 0: a reducer needs the same model on all ranks");
    }
  }
  if (lines.size() < static_cast<size_t>(size)) {
    TORCH_CHECK(
        as_rank_0(group, parameters), "the shapes of the parameters on rank ", rank, " are not those on rank 0: a "
        "reducer needs the same model on all ranks");
  }
}

void share(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty()) {
    c10d::broadcast_coalesced(group, tensors, kBroadcastBytes, 0);
  }
}

} // namespace replicas
