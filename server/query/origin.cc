#include "server/query/origin.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace statcollect::query {
namespace {

// Whether `name` lies below `ancestor` in the module tree; everything lies below the root and below "".
bool IsBelow(std::string_view name, std::string_view ancestor, std::string_view root) {
  if (ancestor.empty() || ancestor == root) return name != root;
  return name.size() > ancestor.size() && name.starts_with(ancestor) && name[ancestor.size()] == '.';
}

// "blocks.1.ln2" -> "blocks.1" -> "blocks" -> "".
std::string_view Parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool IsPlace(const ForwardPoint& point, const Divergence& row) {
  return point.name == row.activation && point.micro_batch == row.micro_batch && point.call == row.call;
}

// Whether something that a forward tensor was computed from diverged.
bool InheritsForward(const Divergence& row, const ForwardTrace& trace) {
  const auto own = std::find_if(trace.points.begin(), trace.points.end(), [&](const ForwardPoint& p) {
    return IsPlace(p, row) && p.kind == row.kind && p.diverged;
  });
  const auto earlier = [&](const auto& wanted, bool* any) {
    bool diverged = false;
    for (auto point = trace.points.begin(); point != own; ++point) {
      if (point->micro_batch != row.micro_batch || !wanted(*point)) continue;
      *any = true;
      diverged = diverged || point->diverged;
    }
    return diverged;
  };
  bool any = false;
  const auto inside = [&](const ForwardPoint& p) { return IsBelow(p.name, row.activation, trace.root); };
  if (row.kind == Kind::kOutput && earlier(inside, &any)) return true;
  any = false;
  const auto input = [&](const ForwardPoint& p) { return p.kind == Kind::kInput && IsPlace(p, row); };
  const bool input_diverged = earlier(input, &any);
  if (any && row.kind == Kind::kOutput) return input_diverged;
  // Another output of the same module diverged before: one mistake, one origin.
  any = false;
  const auto same = [&](const ForwardPoint& p) { return p.name == row.activation; };
  if (earlier(same, &any)) return true;
  std::string_view level = row.activation;
  do {
    level = Parent(level);
    any = false;
    const auto beside = [&](const ForwardPoint& p) {
      return IsBelow(p.name, level, trace.root) && p.name != row.activation &&
             !IsBelow(p.name, row.activation, trace.root);
    };
    const bool diverged = earlier(beside, &any);
    if (any) return diverged;
  } while (!level.empty());
  return false;
}

}  // namespace

void MarkOrigins(std::vector<Divergence>& rows, const std::vector<ForwardTrace>& traces) {
  bool inputs_differ = false;    // weights or batch, on any rank
  bool compute_differs = false;  // forward, loss or backward, on any rank
  bool grads_differ = false;
  std::set<std::uint32_t> forward_ranks;            // with a divergence in forward or loss
  std::set<std::pair<std::uint32_t, Stage>> begun;  // (rank, stage) that has a divergence already
  for (Divergence& row : rows) {
    const bool first_of_stage = begun.insert({row.rank, row.stage}).second;
    switch (row.stage) {
      case Stage::kWeights:
      case Stage::kBatch:
        row.origin = true;
        inputs_differ = true;
        break;
      case Stage::kForward: {
        const auto trace =
            std::find_if(traces.begin(), traces.end(), [&](const auto& t) { return t.rank == row.rank; });
        row.origin =
            !inputs_differ && (trace == traces.end() ? first_of_stage : !InheritsForward(row, *trace));
        forward_ranks.insert(row.rank);
        compute_differs = true;
        break;
      }
      case Stage::kLoss:
        row.origin = !inputs_differ && first_of_stage && !forward_ranks.contains(row.rank);
        forward_ranks.insert(row.rank);
        compute_differs = true;
        break;
      case Stage::kBackward:
        row.origin = !inputs_differ && first_of_stage && !forward_ranks.contains(row.rank);
        compute_differs = true;
        break;
      case Stage::kGrad:
        row.origin = !inputs_differ && !compute_differs && first_of_stage;
        grads_differ = true;
        break;
      default:
        row.origin = !inputs_differ && !compute_differs && !grads_differ && first_of_stage;
    }
  }
}

}  // namespace statcollect::query
