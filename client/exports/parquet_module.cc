// Parquet through Apache Arrow: the columns of the CSV with types of their own.
#include "client/exports/parquet_module.h"

#include <algorithm>
#include <array>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include "client/exports/output.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::int64_t kRowsOfGroup = 65'536;

Status FromArrow(const arrow::Status& status, const std::string& path) {
  if (status.ok()) return Status::Ok();
  const std::string text = status.ToString();
  const bool full = text.find("No space left") != std::string::npos;
  return {full ? Code::kResourceExhausted : Code::kUnknown,
          "write '" + Printable(path) + "': " + Printable(text, 500) +
              (full ? "; free space or choose a different path" : "")};
}

std::shared_ptr<arrow::Schema> MakeSchema(const ExportTarget& target) {
  const auto unsigned32 = arrow::uint32(), unsigned64 = arrow::uint64();
  const auto text = arrow::utf8(), real = arrow::float64();
  arrow::FieldVector fields = {arrow::field("rank", unsigned32, false),
                               arrow::field("step", unsigned64, false),
                               arrow::field("micro_batch", unsigned32, false),
                               arrow::field("kind", text, false),
                               arrow::field("activation", text, false),
                               arrow::field("output_path", text, false),
                               arrow::field("call", unsigned32, false),
                               arrow::field("mode", text, false),
                               arrow::field("class", text, false),
                               arrow::field("depth", arrow::int32(), false),
                               arrow::field("order", unsigned32, false),
                               arrow::field("dtype", text, false),
                               arrow::field("shape", arrow::list(arrow::int64()))};
  for (const char* name : {"numel", "nan", "pos_inf", "neg_inf", "zero", "neg", "pos"})
    fields.push_back(arrow::field(name, unsigned64));
  for (const char* name : {"min", "max", "mean", "std", "l1", "l2"})
    fields.push_back(arrow::field(name, real));
  fields.push_back(arrow::field("hash", unsigned64));
  fields.push_back(arrow::field("inf", unsigned64));
  fields.push_back(arrow::field("hash_kind", text));
  fields.push_back(arrow::field("untrusted", text));
  if (target.sketches) fields.push_back(arrow::field("sketch", arrow::list(real)));
  if (target.samples) fields.push_back(arrow::field("samples", arrow::list(real)));
  return arrow::schema(std::move(fields), arrow::key_value_metadata({{"statcollect.run", target.run}}));
}

class ParquetExporter final : public Exporter {
 public:
  ParquetExporter(const ExportTarget& target, Partial partial)
      : target_(target), partial_(std::move(partial)) {}

  arrow::Status Open() {
    schema_ = MakeSchema(target_);
    ARROW_ASSIGN_OR_RAISE(out_, arrow::io::FileOutputStream::Open(partial_.path()));
    const auto properties =
        parquet::WriterProperties::Builder().compression(parquet::Compression::SNAPPY)->build();
    const auto of_arrow = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    ARROW_ASSIGN_OR_RAISE(writer_, parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(),
                                                                    out_, properties, of_arrow));
    ARROW_ASSIGN_OR_RAISE(
        rows_, arrow::RecordBatchBuilder::Make(schema_, arrow::default_memory_pool(), kRowsOfGroup));
    return arrow::Status::OK();
  }

  Status Write(const Observation& o) override { return FromArrow(Append(o), target_.path); }

  Status Finish() override {
    STATCOLLECT_RETURN_IF_ERROR(FromArrow(Close(), target_.path));
    return partial_.Commit();
  }

 private:
  template <typename Builder>
  Builder& Next() {
    return *rows_->GetFieldAs<Builder>(column_++);
  }
  arrow::Status AddText(std::string_view text) { return Next<arrow::StringBuilder>().Append(text); }
  arrow::Status AddWord(std::string_view text) {
    auto& column = Next<arrow::StringBuilder>();
    return text.empty() ? column.AppendNull() : column.Append(text);
  }
  template <typename Builder, typename T>
  arrow::Status AddIfThere(const std::optional<T>& value) {
    auto& column = Next<Builder>();
    return value ? column.Append(*value) : column.AppendNull();
  }
  template <typename Builder, typename T>
  arrow::Status AddList(std::span<const T> values, bool there) {
    auto& column = Next<arrow::ListBuilder>();
    if (!there) return column.AppendNull();
    ARROW_RETURN_NOT_OK(column.Append());
    return static_cast<Builder*>(column.value_builder())
        ->AppendValues(values.data(), static_cast<std::int64_t>(values.size()));
  }

  arrow::Status Append(const Observation& o) {
    const TensorKey& key = o.def->key;
    const Numbers n = NumbersOf(o);
    column_ = 0;
    ARROW_RETURN_NOT_OK(Next<arrow::UInt32Builder>().Append(o.rank));
    ARROW_RETURN_NOT_OK(Next<arrow::UInt64Builder>().Append(o.step));
    ARROW_RETURN_NOT_OK(Next<arrow::UInt32Builder>().Append(key.micro_batch));
    for (const std::string_view text :
         {Name(key.kind), std::string_view(key.name), std::string_view(key.output_path)})
      ARROW_RETURN_NOT_OK(AddText(text));
    ARROW_RETURN_NOT_OK(Next<arrow::UInt32Builder>().Append(key.call));
    ARROW_RETURN_NOT_OK(AddText(Name(key.mode)));
    ARROW_RETURN_NOT_OK(AddText(o.def->class_name));
    ARROW_RETURN_NOT_OK(Next<arrow::Int32Builder>().Append(o.def->depth));
    ARROW_RETURN_NOT_OK(Next<arrow::UInt32Builder>().Append(o.order));
    ARROW_RETURN_NOT_OK(AddText(Name(o.layout->dtype)));
    ARROW_RETURN_NOT_OK(
        AddList<arrow::Int64Builder>(std::span<const std::int64_t>(o.layout->shape), n.numel.has_value()));
    for (const auto& count : {n.numel, n.nan, n.pos_inf, n.neg_inf, n.zero, n.neg, n.pos})
      ARROW_RETURN_NOT_OK(AddIfThere<arrow::UInt64Builder>(count));
    for (const auto& moment : {n.min, n.max, n.mean, n.std, n.l1, n.l2})
      ARROW_RETURN_NOT_OK(AddIfThere<arrow::DoubleBuilder>(moment));
    ARROW_RETURN_NOT_OK(AddIfThere<arrow::UInt64Builder>(n.hash));
    ARROW_RETURN_NOT_OK(AddIfThere<arrow::UInt64Builder>(n.inf));
    ARROW_RETURN_NOT_OK(AddWord(HashKindOf(*o.layout)));
    ARROW_RETURN_NOT_OK(AddWord(UntrustedOf(*o.layout)));
    if (target_.sketches) ARROW_RETURN_NOT_OK(AddList<arrow::DoubleBuilder>(o.sketch, !o.sketch.empty()));
    if (target_.samples) ARROW_RETURN_NOT_OK(AddList<arrow::DoubleBuilder>(o.samples, !o.samples.empty()));
    return ++filled_ < kRowsOfGroup ? arrow::Status::OK() : WriteGroup();
  }

  arrow::Status WriteGroup() {
    if (std::exchange(filled_, 0) == 0) return arrow::Status::OK();
    ARROW_ASSIGN_OR_RAISE(const auto batch, rows_->Flush());
    ARROW_ASSIGN_OR_RAISE(const auto table, arrow::Table::FromRecordBatches(schema_, {batch}));
    return writer_->WriteTable(*table, kRowsOfGroup);
  }

  arrow::Status Close() {
    ARROW_RETURN_NOT_OK(WriteGroup());
    ARROW_RETURN_NOT_OK(writer_->Close());
    return out_->Close();
  }

  const ExportTarget target_;
  Partial partial_;
  std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<arrow::io::FileOutputStream> out_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
  std::unique_ptr<arrow::RecordBatchBuilder> rows_;
  std::int64_t filled_ = 0;  // rows in it
  int column_ = 0;           // of the row being filled, the next
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void statctl_make_parquet_exporter(
    const ExportTarget& target, std::unique_ptr<Exporter>* exporter, Status* failure) {
  auto partial = Partial::File(target.path, target.overwrite);
  if (!partial.ok()) {
    *failure = partial.status();
    return;
  }
  auto made = std::make_unique<ParquetExporter>(target, *std::move(partial));
  *failure = FromArrow(made->Open(), target.path);
  if (failure->ok()) *exporter = std::move(made);
}

}  // namespace statcollect::client
