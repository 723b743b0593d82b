// Decoders of what is on the disk, with the checksum made right: keys, catalogue values, blocks of
// statistics. The first byte chooses; an input that decodes must encode to something that decodes
// to the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "common/capture_spec.h"
#include "common/step_set.h"
#include "server/store/capture_requests.h"
#include "server/store/codec/block_reader.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/stat_block.h"
#include "server/store/key.h"
#include "tests/fuzz/blocks.h"

namespace {

using namespace statcollect;

template <typename T>
void Catalogue(std::string_view payload) {
  const auto value = Decode<T>("value", Seal(1, payload));
  if (!value.ok()) return;
  const std::string again = Encode(*value);
  const auto decoded = Decode<T>("value", again);
  if (!decoded.ok() || Encode(*decoded) != again) std::abort();
}

void Block(std::string_view payload, std::uint8_t version) {
  const std::string stats = Seal(version, payload);
  const auto reader = BlockReader::Open({}, stats);
  if (!reader.ok() || reader->kind() != BlockReader::Kind::kWhole) return;
  BlockColumns block;
  if (!reader->ReadNumbers(nullptr, &block).ok()) return;
  for (std::uint32_t activation = 0; activation < 4; ++activation) {
    if (const auto place = reader->Find(activation)) (void)reader->ReadRecord(*place, nullptr);
  }
  const std::string sums = Seal(version, payload.substr(payload.size() / 2));
  (void)reader->ReadSums(std::string_view(sums), nullptr, &block);
}

// The statistics' length in two bytes, the statistics, the sketches. What is read can be written
// again; a record read alone is the block's.
void BlockWithSums(std::string_view bytes, const BlockColumns& frame) {
  if (bytes.size() < 2) return;
  const std::size_t length = static_cast<std::size_t>(static_cast<unsigned char>(bytes[0])) << 8 |
                             static_cast<unsigned char>(bytes[1]);
  bytes.remove_prefix(2);
  const std::string stats = Seal(kStatBlockVersion, bytes.substr(0, length));
  const std::string sums = Seal(kStatBlockVersion, bytes.substr(std::min(length, bytes.size())));
  const auto reader = BlockReader::Open({}, stats);
  if (!reader.ok() || reader->kind() == BlockReader::Kind::kAlias) return;
  const BlockColumns* key_frame = reader->kind() == BlockReader::Kind::kRelative ? &frame : nullptr;
  BlockColumns block;
  if (!reader->ReadNumbers(key_frame, &block).ok()) return;
  for (std::size_t i = 0; i < block.size(); ++i) {
    ColumnRecord key;
    if (key_frame != nullptr) key = key_frame->Record(i);
    if (reader->ReadRecord(i, key_frame != nullptr ? &key : nullptr) != block.Record(i))
      std::abort();
  }
  if (!reader->ReadSums(std::string_view(sums), key_frame, &block).ok()) return;
  const EncodedBlock again = EncodeBlock(block, block.Digest());
  const auto reread = BlockReader::Open({}, again.stats);
  BlockColumns back;
  if (!reread.ok() || !reread->ReadNumbers(nullptr, &back).ok()) std::abort();
  const auto there =
      again.sums.empty() ? std::nullopt : std::optional<std::string_view>(again.sums);
  if (!reread->ReadSums(there, nullptr, &back).ok()) std::abort();
}

// What is stored of captures, exponents and tokens, and the text that asks for a capture.
void Captures(std::uint8_t choice, std::string_view rest) {
  if (choice == 0xf0) return Catalogue<CaptureHead>(rest);
  if (choice == 0xf4) return Catalogue<ExponentRecord>(rest);
  if (choice == 0xf5) return Catalogue<TokenRecord>(rest);
  if (choice == 0xf1) {
    const auto key = DecodeCaptureKey(rest);
    if (key && EncodeCaptureKey(*key) != rest) std::abort();
  } else if (choice == 0xf2) {
    const auto requests = DecodeCaptureRequests(rest);
    if (!requests.ok()) return;
    const std::string again = EncodeCaptureRequests(*requests);
    const auto back = DecodeCaptureRequests(again);
    if (!back.ok() || EncodeCaptureRequests(*back) != again) std::abort();
  } else if (const auto specs = ParseCaptureSpecs(rest); specs.ok()) {
    for (const CaptureSpec& spec : *specs) {
      const auto again = CaptureSpec::FromArguments(spec.ToArguments());
      if (!again.ok() || again->ToArguments() != spec.ToArguments()) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const BlockColumns frame = fuzz::Block(0);
  if (data[0] >= 0xf0) {
    Captures(data[0], rest);
    return 0;
  }
  switch (data[0] % 12) {
    case 0:
      Catalogue<AttemptMeta>(rest);
      break;
    case 1:
      Catalogue<SessionInfo>(rest);
      break;
    case 2:
      Catalogue<RankMeta>(rest);
      break;
    case 3:
      Catalogue<TensorDef>(rest);
      break;
    case 4:
      Catalogue<Layout>(rest);
      break;
    case 5:
      Catalogue<ScalarRecord>(rest);
      break;
    case 6:
      Catalogue<EventRecord>(rest);
      break;
    case 7:
      Catalogue<StepRecord>(rest);
      break;
    case 8:
      if (const auto key = DecodeStatKey(rest); key && EncodeStatKey(*key) != rest) std::abort();
      break;
    case 9:
      if (const auto steps = StepSet::Parse(rest); steps.ok()) (void)steps->Contains(7);
      break;
    case 10:
      BlockWithSums(rest, frame);
      break;
    default:
      Block(rest, kStatBlockVersion);
      (void)Unseal("value", rest, kStatBlockVersion);
  }
  return 0;
}
