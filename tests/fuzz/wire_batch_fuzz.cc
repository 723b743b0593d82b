// What agents send: a batch whose checksum is made right, and a hello. What is taken must survive
// the way back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "common/checksum.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace statcollect;
  v1::Hello hello;
  if (hello.ParseFromArray(data, static_cast<int>(size))) (void)FromWire(hello);
  v1::Batch wire;
  if (!wire.ParseFromArray(data, static_cast<int>(size))) return 0;
  (void)FromWire(wire, {});
  wire.set_crc(Crc32c(wire.records()));
  const auto batch = FromWire(wire, {});
  if (!batch.ok() || batch->records() == 0) return 0;
  const auto again = FromWire(ToWire(*batch, {}), {});
  if (!again.ok() || again->records() != batch->records() || again->layouts != batch->layouts)
    std::abort();
  return 0;
}
