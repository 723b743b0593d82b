// Folders as ONNX Runtime's StatisticsSubscriber makes them: step_<k>/order.txt and a file a tensor
// and direction.
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "client/exports/exporter.h"
#include "client/exports/ort_text.h"
#include "client/exports/output.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

bool IsNumbered(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

class OrtExporter final : public Exporter {
 public:
  OrtExporter(const ExportTarget& target, Partial partial)
      : rank_folders_(target.rank_folders), partial_(std::move(partial)) {}

  Status Write(const Observation& o) override {
    const TensorKey& key = o.def->key;
    if (!IsOrtKind(key.kind)) {
      ++left_out_[std::string(Name(key.kind)) + " tensors"];
      return Status::Ok();
    }
    if (const std::string_view lacks = OrtLacks(o); !lacks.empty()) {
      ++left_out_["records without " + std::string(lacks)];
      return Status::Ok();
    }
    std::string of = FolderOf(o);
    if (!place_ || *place_ != std::pair(o.step, of))
      STATCOLLECT_RETURN_IF_ERROR(BeginStep(o.step, std::move(of)));
    const std::string_view direction = IsBackward(key.kind) ? "_backward" : "_forward";
    std::string label = OrtLabel(key);
    // An output and an inspected tensor of one name.
    if (!names_.insert(label + std::string(direction)).second) {
      label += '@' + std::string(Name(key.kind));
      names_.insert(label + std::string(direction));
    }
    const std::string name = label + std::string(direction);
    STATCOLLECT_RETURN_IF_ERROR(order_->Write(name + "\n"));
    return WriteNewFile(folder_ + "/" + name, OrtText(o, label));
  }

  Status Finish() override {
    STATCOLLECT_RETURN_IF_ERROR(EndStep());
    return partial_.Commit();
  }

  std::vector<std::string> Remarks() const override {
    std::vector<std::string> remarks;
    for (const auto& [what, count] : left_out_) {
      remarks.push_back(fmt::format("{} {} left out: the format cannot hold them", count, what));
    }
    return remarks;
  }

 private:
  // Empty: the export's own.
  std::string FolderOf(const Observation& o) const {
    if (!o.ranks.empty()) return std::string(kWholeFolder);
    return rank_folders_ ? fmt::format("rank_{}", o.rank) : "";
  }
  Status BeginStep(std::uint64_t step, std::string of) {
    STATCOLLECT_RETURN_IF_ERROR(EndStep());
    std::string parent = partial_.path();
    if (!of.empty()) {
      parent += "/" + of;
      if (folders_.insert(of).second) STATCOLLECT_RETURN_IF_ERROR(MakeFolder(parent));
    }
    folder_ = fmt::format("{}/step_{}", parent, step);
    STATCOLLECT_RETURN_IF_ERROR(MakeFolder(folder_));
    auto order = FileWriter::Create(folder_ + "/order.txt");
    if (!order.ok()) return order.status();
    order_.emplace(*std::move(order));
    place_ = {step, std::move(of)};
    return Status::Ok();
  }
  Status EndStep() {
    names_.clear();
    place_.reset();
    if (!order_) return Status::Ok();
    const Status closed = order_->Close();
    order_.reset();
    return closed;
  }

  const bool rank_folders_;
  Partial partial_;
  std::optional<std::pair<std::uint64_t, std::string>>
      place_;           // step and folder of ranks being written
  std::string folder_;  // of that step
  std::optional<FileWriter> order_;
  std::set<std::string> names_;  // of that step's files
  std::set<std::string> folders_;
  std::map<std::string, std::uint64_t> left_out_;
};

}  // namespace

Result<std::unique_ptr<Exporter>> MakeOrtExporter(const ExportTarget& target) {
  const auto is_ours = [](std::string_view name) {
    return IsNumbered(name, "step_") || IsNumbered(name, "rank_") || name == kWholeFolder;
  };
  auto partial = Partial::Folder(target.path, target.overwrite, is_ours,
                                 "step_<k>, rank_<r> and whole folders only");
  if (!partial.ok()) return partial.status();
  return std::unique_ptr<Exporter>(std::make_unique<OrtExporter>(target, *std::move(partial)));
}

}  // namespace statcollect::client
