#include "server/query/logical/findings.h"

#include <utility>

#include "common/names.h"

namespace statcollect::query {
namespace {

const char* Heading(Finding finding) {
  switch (finding) {
    case Finding::kConflicting:
      return "layout contradicts itself, not compared";
    case Finding::kIncomplete:
      return "incomplete, not compared";
    case Finding::kReplicasDiffer:
      return "replicas differ";
  }
  return "";
}

}  // namespace

void Findings::Add(Finding finding, const TensorKey& tensor, std::uint64_t step,
                   std::uint64_t order, const std::string& what) {
  MutexLock lock(mutex_);
  Found& found = found_[finding];
  const bool first =
      found.tensors.empty() || std::pair(step, order) < std::pair(found.step, found.order);
  found.tensors.emplace(tensor.kind, tensor.name, tensor.output_path);
  if (!first) return;
  found.step = step;
  found.order = order;
  found.first = tensor;
  found.what = what;
}

std::vector<std::string> Findings::Sentences(const std::string& run) const {
  MutexLock lock(mutex_);
  std::vector<std::string> sentences;
  for (const auto& [finding, found] : found_) {
    const std::size_t count = found.tensors.size();
    sentences.push_back(run + ": " + Heading(finding) + ": " + std::to_string(count) +
                        (count == 1 ? " tensor, " : " tensors, such as ") +
                        std::string(Name(found.first.kind)) + " " + Printable(found.first.name) +
                        ", step " + std::to_string(found.step) + ": " + found.what);
  }
  return sentences;
}

}  // namespace statcollect::query
