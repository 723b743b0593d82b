// statctl tensor: one command for three questions about tensors.
#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/option_use.h"
#include "client/commands/selection.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client {
namespace {

Status CheckUse(const TensorOptions& o) {
  const bool named = !o.name.empty(), series = named && !o.exponents, top = !named && !o.exponents;
  return CheckOptionUse(
      {{"--stat", !o.stats.empty(), series, "the name of a tensor"},
       {"--path", !o.output_path.empty(), series, "the name of a tensor"},
       {"--by-rank", o.by_rank, !o.exponents, "statistics, and not --exponents"},
       {"--by", !o.by.empty(), top, "the tensors of a step, and no name of one"},
       {"--count", o.count.has_value(), !named, "many tensors, and no name of one"},
       {"--dtype", !o.dtype.empty(), o.exponents, "--exponents"}});
}

// The one step of a list of tensors.
Result<std::optional<std::uint64_t>> OneStep(const std::string& steps) {
  if (steps.empty()) return std::optional<std::uint64_t>();
  const auto step = ParseNumber<std::uint64_t>(steps);
  if (!step)
    return Status(Code::kInvalidArgument,
                  "--step: found '" + Printable(steps) +
                      "'; expected one step, as there is no name of a tensor");
  return std::optional(*step);
}

}  // namespace

int ShowTensor(Session& session, const TensorOptions& o) {
  const std::string attempted =
      fmt::format("tensor {}{}{}", Printable(o.run), o.name.empty() ? "" : " ", Printable(o.name));
  if (const Status wrong = CheckUse(o); !wrong.ok()) return session.Fail(attempted, wrong);
  if (o.exponents) {
    ExponentsOptions exponents{.run = o.run,
                               .activation = o.name,
                               .kinds = o.kinds,
                               .ranks = o.ranks,
                               .steps = o.steps,
                               .dtype = o.dtype};
    exponents.top = o.count.value_or(exponents.top);
    return Exponents(session, exponents);
  }
  if (!o.name.empty())
    return Series(session, {.run = o.run,
                            .activation = o.name,
                            .stats = o.stats,
                            .kind = o.kinds,
                            .ranks = o.ranks,
                            .steps = o.steps,
                            .output_path = o.output_path,
                            .by_rank = o.by_rank});
  const auto step = OneStep(o.steps);
  if (!step.ok()) return session.Fail(attempted, step.status());
  TopOptions top{
      .run = o.run, .ranks = o.ranks, .kinds = o.kinds, .step = *step, .by_rank = o.by_rank};
  if (!o.by.empty()) top.by = o.by;
  top.count = o.count.value_or(top.count);
  return Top(session, top);
}

}  // namespace statcollect::client
