// One line an observation, with a header (docs/import-export.md).
#include <utility>
#include <vector>

#include "client/exports/exporter.h"
#include "client/exports/output.h"
#include "client/exports/text.h"
#include "common/csv.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::string_view kHeader =
    "rank,step,micro_batch,kind,activation,output_path,call,mode,class,depth,order,dtype,shape,"
    "numel,nan,pos_"
    "inf,"
    "neg_inf,zero,neg,pos,min,max,mean,std,l1,l2,hash,inf,hash_kind,untrusted";

constexpr int kPlaceColumns = 6;  // global_shape to partial
const std::vector<std::int64_t> kNone;

// Fields of one line, each after the first with a comma before it.
class Line {
 public:
  explicit Line(std::string& to) : to_(to) {}
  Line& Add(std::uint64_t value) {
    AppendUnsigned(value, Next());
    return *this;
  }
  Line& AddSigned(std::int64_t value) {
    AppendSigned(value, Next());
    return *this;
  }
  Line& Add(std::string_view text) {
    AppendCsvField(text, Next());
    return *this;
  }
  Line& Add(const std::optional<std::uint64_t>& value) {
    if (value) return Add(*value);
    Next();
    return *this;
  }
  Line& Add(const std::optional<double>& value) {
    std::string& to = Next();
    if (value) AppendDouble(*value, to);
    return *this;
  }
  template <typename T>
  Line& AddList(std::span<const T> values) {
    text_.clear();
    AppendList(values, text_);
    return Add(text_);
  }
  void End() { to_ += "\r\n"; }
  std::string& Next() {
    if (!std::exchange(first_, false)) to_ += ',';
    return to_;
  }

 private:
  std::string& to_;
  std::string text_;
  bool first_ = true;
};

class CsvExporter final : public Exporter {
 public:
  CsvExporter(const ExportTarget& target, std::optional<Partial> partial, FileWriter out)
      : target_(target), partial_(std::move(partial)), out_(std::move(out)) {
    out_.buffer() += kHeader;
    if (target.sketches) out_.buffer() += ",sketch";
    if (target.samples) out_.buffer() += ",samples";
    out_.buffer() += ",global_shape,boxes,ranges,piece,pieces,partial,ranks\r\n";
  }

  Status Write(const Observation& o) override {
    const TensorKey& key = o.def->key;
    const Numbers n = NumbersOf(o);
    Line line(out_.buffer());
    line.Add(o.rank)
        .Add(o.step)
        .Add(key.micro_batch)
        .Add(Name(key.kind))
        .Add(key.name)
        .Add(key.output_path);
    line.Add(key.call)
        .Add(Name(key.mode))
        .Add(o.def->class_name)
        .AddSigned(o.def->depth)
        .Add(o.order);
    line.Add(Name(o.layout->dtype));
    if (n.numel) {
      line.AddList(std::span<const std::int64_t>(o.layout->shape));
    } else {
      line.Next();
    }
    line.Add(n.numel).Add(n.nan).Add(n.pos_inf).Add(n.neg_inf).Add(n.zero).Add(n.neg).Add(n.pos);
    line.Add(n.min).Add(n.max).Add(n.mean).Add(n.std).Add(n.l1).Add(n.l2);
    if (std::string& to = line.Next(); n.hash) AppendHash(*n.hash, to);
    line.Add(n.inf).Add(HashKindOf(*o.layout)).Add(UntrustedOf(*o.layout));
    if (target_.sketches) AddIfThere(line, o.sketch);
    if (target_.samples) AddIfThere(line, o.samples);
    AddPlace(line, o);
    line.End();
    return out_.Flushed();
  }

  Status Finish() override {
    STATCOLLECT_RETURN_IF_ERROR(out_.Close(/*sync=*/partial_.has_value()));
    return partial_ ? partial_->Commit() : Status::Ok();
  }

 private:
  // Where a part lies in the whole tensor; cells of tensors that are not parts are empty.
  static void AddPlace(Line& line, const Observation& o) {
    if (o.layout->placement) {
      const Placement& place = *o.layout->placement;
      line.AddList(std::span<const std::int64_t>(place.global_shape));
      AddIfThere(line, std::span<const std::int64_t>(place.ranges.empty() ? place.boxes : kNone));
      AddIfThere(line, std::span<const std::int64_t>(place.ranges));
      const bool is_piece = place.pieces > 1;
      const auto number = [&](std::uint64_t value) {
        return is_piece ? std::optional(value) : std::nullopt;
      };
      line.Add(number(place.piece)).Add(number(place.pieces)).Add(place.partial ? "true" : "");
    } else {
      for (int i = 0; i < kPlaceColumns; ++i) line.Next();
    }
    const std::vector<std::int64_t> ranks(o.ranks.begin(), o.ranks.end());
    AddIfThere(line, std::span<const std::int64_t>(ranks));
  }
  template <typename T>
  static void AddIfThere(Line& line, std::span<const T> values) {
    if (values.empty()) {
      line.Next();
    } else {
      line.AddList(values);
    }
  }

  const ExportTarget target_;
  std::optional<Partial> partial_;
  FileWriter out_;
};

}  // namespace

Result<std::unique_ptr<Exporter>> MakeCsvExporter(const ExportTarget& target) {
  if (target.path == "-")
    return std::unique_ptr<Exporter>(
        std::make_unique<CsvExporter>(target, std::nullopt, FileWriter::StandardOutput()));
  auto partial = Partial::File(target.path, target.overwrite);
  if (!partial.ok()) return partial.status();
  auto out = FileWriter::Create(partial->path());
  if (!out.ok()) return out.status();
  return std::unique_ptr<Exporter>(
      std::make_unique<CsvExporter>(target, *std::move(partial), *std::move(out)));
}

}  // namespace statcollect::client
