#include "proto/convert/exponents.h"

#include <string>

#include "proto/convert/checks.h"

namespace statcollect::convert {

void ExponentsToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const ExponentRecord& record : batch.exponents) {
    v1::Exponents* e = wire->add_exponents();
    e->set_activation(record.activation);
    e->set_layout(record.layout);
    e->set_step(record.step);
    e->set_lowest(record.lowest);
    e->mutable_counts()->Assign(record.counts.begin(), record.counts.end());
  }
}

Status ExponentsFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch) {
  for (int i = 0; i < wire.exponents_size(); ++i) {
    const v1::Exponents& e = wire.exponents(i);
    const auto index = static_cast<std::size_t>(i);
    const Layout* layout = layouts.Find(e.layout());
    if (layout == nullptr || !layout->Has(Statistic::kShape)) {
      return InvalidValue("exponents", index, "of layout " + std::to_string(e.layout()),
                          "a layout with a shape that the session has defined");
    }
    const std::int64_t end = std::int64_t{e.lowest()} + e.counts_size();
    if (e.lowest() < kExponentLowest || end > kExponentHighest + 1 ||
        (e.counts_size() > 0 && (e.counts(0) == 0 || e.counts(e.counts_size() - 1) == 0))) {
      return InvalidValue("exponents", index,
                          "of " + std::to_string(e.counts_size()) + " counts from exponent " +
                              std::to_string(e.lowest()),
                          "counts from the first to the last that is not 0, within " +
                              std::to_string(kExponentLowest) + ".." +
                              std::to_string(kExponentHighest));
    }
    std::uint64_t left = Elements(*layout) * (IsComplex(layout->dtype) ? 2 : 1);
    for (const std::uint64_t count : e.counts()) {
      if (count > left)
        return InvalidValue("exponents", index, "of more components than the tensor has",
                            "at most all");
      left -= count;
    }
    batch->exponents.push_back({.step = e.step(),
                                .activation = e.activation(),
                                .layout = e.layout(),
                                .lowest = e.lowest(),
                                .counts = {e.counts().begin(), e.counts().end()}});
  }
  return Status::Ok();
}

}  // namespace statcollect::convert
