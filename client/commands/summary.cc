// The merged text of one step, as ONNX Runtime's merge tool writes it.
#include <unistd.h>

#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/exports/exporter.h"
#include "client/exports/ort_text.h"
#include "client/exports/output.h"
#include "client/exports/records_decoder.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr int kMissingListed = 20;

// A step: the blocks by name, and the names in order of execution.
class Blocks final : public Exporter {
 public:
  // `with_text`: false where the order alone is wanted.
  explicit Blocks(bool with_text) : with_text_(with_text) {}

  Status Write(const Observation& o) override {
    if (!IsOrtKind(o.def->key.kind)) return Status::Ok();
    if (!OrtLacks(o).empty()) {
      ++lacking_;
      return Status::Ok();
    }
    const std::string label = OrtLabel(o.def->key);
    std::string name = label + (IsBackward(o.def->key.kind) ? "_backward" : "_forward");
    order_.push_back(name);
    text_.emplace(std::move(name), with_text_ ? OrtText(o, label) : std::string());
    return Status::Ok();
  }
  Status Finish() override { return Status::Ok(); }

  const std::vector<std::string>& order() const { return order_; }
  std::uint64_t lacking() const { return lacking_; }  // records without what the text needs
  // nullptr if there is none.
  const std::string* Find(const std::string& name) const {
    const auto found = text_.find(name);
    return found == text_.end() ? nullptr : &found->second;
  }

 private:
  const bool with_text_;
  std::vector<std::string> order_;
  std::map<std::string, std::string> text_;
  std::uint64_t lacking_ = 0;
};

Status Read(Session& session, const std::string& run, const SummaryOptions& options,
            Blocks& blocks) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  v1::ReadRecordsRequest request;
  request.set_run(run);
  request.add_ranks(options.rank.value_or(0));
  request.set_whole(!options.rank);
  request.set_steps(std::to_string(options.step));
  for (const v1::Kind kind :
       {v1::KIND_OUTPUT, v1::KIND_GRAD_OUTPUT, v1::KIND_INSPECT, v1::KIND_INSPECT_GRAD})
    request.add_kinds(kind);
  request.set_samples(true);
  RecordsDecoder decoder(blocks);
  STATCOLLECT_RETURN_IF_ERROR(session.collector().ReadRecords(
      request, [&](const v1::ReadRecordsResponse& message) { return decoder.Take(message); }));
  if (!blocks.order().empty()) return Status::Ok();
  return {Code::kNotFound,
          fmt::format(
              "run {} has no outputs or gradients of rank {} in step {}; statctl show {} lists its "
              "steps",
              run, options.rank.value_or(0), options.step, run)};
}

// Names of `order` that the run lacks, and of the run that `order` lacks.
void RemarkMissing(const Session& session, const std::string& what,
                   const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::string list;
  for (std::size_t i = 0; i < names.size() && i < kMissingListed; ++i)
    list += "\n  " + Printable(names[i]);
  if (names.size() > kMissingListed)
    list += fmt::format("\n  and {} more", names.size() - kMissingListed);
  session.Remark(fmt::format("warning: {}:{}", what, list));
}

// Each block is the tensor's file and one line's end. Both runs may have a name several times in an
// order that another tool wrote; here each comes once.
std::string Merge(Session& session, const SummaryOptions& options, const Blocks& run,
                  const std::vector<std::string>& order) {
  std::string text;
  std::vector<std::string> missing, surplus;
  std::set<std::string> seen;
  for (const std::string& name : order) {
    if (!seen.insert(name).second) continue;
    if (const std::string* block = run.Find(name)) {
      text += *block + '\n';
    } else {
      missing.push_back(name);
    }
  }
  for (const std::string& name : run.order()) {
    if (!seen.contains(name)) surplus.push_back(name);
  }
  RemarkMissing(session,
                fmt::format("{} of {} are not in {} and are left out", missing.size(), options.like,
                            options.run),
                missing);
  RemarkMissing(session,
                fmt::format("{} of {} are not in {} and are left out", surplus.size(), options.run,
                            options.like),
                surplus);
  return text;
}

// <out>/step_<k>_.txt; the underscore is the merge tool's.
Status WriteSummary(const SummaryOptions& options, const std::string& text) {
  const std::string path = fmt::format("{}/step_{}_.txt", options.out, options.step);
  auto partial = Partial::File(path, options.overwrite);
  if (!partial.ok()) return partial.status();
  STATCOLLECT_RETURN_IF_ERROR(WriteNewFile(partial->path(), text));
  return partial->Commit();
}

Status DoSummarise(Session& session, const SummaryOptions& options) {
  Blocks run(/*with_text=*/true), like(/*with_text=*/false);
  STATCOLLECT_RETURN_IF_ERROR(Read(session, options.run, options, run));
  if (!options.like.empty())
    STATCOLLECT_RETURN_IF_ERROR(Read(session, options.like, options, like));
  if (run.lacking() > 0)
    session.Remark(
        fmt::format("warning: {} records lack counts or shape and are left out", run.lacking()));
  const std::string text =
      Merge(session, options, run, options.like.empty() ? run.order() : like.order());
  if (!options.out.empty()) return WriteSummary(options, text);
  std::cout << text;
  return Status::Ok();
}

}  // namespace

int Summarise(Session& session, const SummaryOptions& options) {
  const Status status = DoSummarise(session, options);
  return status.ok() ? kExitSame : session.Fail("summary " + Printable(options.run), status);
}

}  // namespace statcollect::client
