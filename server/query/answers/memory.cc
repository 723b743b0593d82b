#include "server/query/answers/memory.h"

#include <array>
#include <utility>

#include "server/query/answers/message_parts.h"
#include "server/query/each_record.h"

namespace statcollect::query {
namespace {

using MemoryFields = std::array<const google::protobuf::FieldDescriptor*, kMemoryQuantityCount>;

// The fields of a row, by quantity: they have its name.
const MemoryFields& FieldsOfMemory() {
  static const MemoryFields fields = [] {
    MemoryFields found{};
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const std::string name(Name(static_cast<MemoryQuantity>(i)));
      found[static_cast<std::size_t>(i)] = v1::MemoryRow::descriptor()->FindFieldByName(name);
    }
    return found;
  }();
  return fields;
}

void Fill(const MemoryRecord& record, v1::MemoryRow& row) {
  row.set_step(record.step);
  row.set_micro_batch(record.micro_batch);
  row.set_phase(std::string(Name(record.phase)));
  row.set_device(record.device);
  row.set_module(record.module);
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    const auto* field = FieldsOfMemory()[static_cast<std::size_t>(i)];
    if (record.Has(quantity))
      v1::MemoryRow::GetReflection()->SetInt64(&row, field, record.Of(quantity));
  }
}

}  // namespace

Result<MemoryRequest> FromWire(const v1::ListMemoryRequest& request) {
  auto wanted = SelectionFromWire<MemoryRequest>(request);
  if (wanted.ok()) wanted->modules = request.modules();
  return wanted;
}

Status ListMemory(const Context& context, const MemoryRequest& request,
                  v1::ListMemoryResponse& out) {
  const auto take = [&](std::uint32_t rank, MemoryRecord& record) {
    if (record.module.empty() == request.modules) return Status::Ok();
    if (IsFull(out.records())) return TooManyRows("memory");
    v1::MemoryRow& row = *out.add_records();
    row.set_run(request.run);
    row.set_rank(rank);
    Fill(record, row);
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord<MemoryRecord>(context.store, request, take));
  SortByStep(*out.mutable_records());
  return Status::Ok();
}

}  // namespace statcollect::query
