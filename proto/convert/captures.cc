#include "proto/convert/captures.h"

#include <string>

#include "common/capture_spec.h"
#include "proto/convert/checks.h"

namespace statcollect::convert {

void CapturesToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const CaptureChunk& chunk : batch.captures) {
    v1::CaptureChunk* c = wire->add_captures();
    c->set_activation(chunk.activation);
    c->set_layout(chunk.layout);
    c->set_step(chunk.step);
    c->set_elements(chunk.elements);
    c->set_offset(chunk.offset);
    c->set_data(chunk.data);
  }
}

Status CapturesFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch) {
  for (int i = 0; i < wire.captures_size(); ++i) {
    const v1::CaptureChunk& c = wire.captures(i);
    const auto index = static_cast<std::size_t>(i);
    const Layout* layout = layouts.Find(c.layout());
    if (layout == nullptr || !layout->Has(Statistic::kShape)) {
      return InvalidValue("captures", index, "of layout " + std::to_string(c.layout()),
                          "a layout with a shape that the session has defined");
    }
    const std::size_t element = DTypeBytes(layout->dtype);
    if (c.elements() > Elements(*layout) || c.elements() > kCaptureBytesMax / element) {
      return InvalidValue("captures", index, "of " + std::to_string(c.elements()) + " elements",
                          "at most the tensor's " + std::to_string(Elements(*layout)) +
                              ", in at most " + std::to_string(kCaptureBytesMax) + " bytes");
    }
    const std::uint64_t bytes = c.elements() * element;
    if (c.data().size() > kCaptureChunkBytesMax || c.offset() > bytes ||
        c.data().size() > bytes - c.offset() || (c.data().empty() && bytes > 0)) {
      return InvalidValue(
          "captures", index,
          "of " + std::to_string(c.data().size()) + " bytes at " + std::to_string(c.offset()),
          "1.." + std::to_string(kCaptureChunkBytesMax) + " bytes within the " +
              std::to_string(bytes) + " of its elements");
    }
    batch->captures.push_back({.step = c.step(),
                               .activation = c.activation(),
                               .layout = c.layout(),
                               .elements = c.elements(),
                               .offset = c.offset(),
                               .data = c.data()});
  }
  return Status::Ok();
}

}  // namespace statcollect::convert
