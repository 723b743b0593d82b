// make_corpus DIR: writes one valid input of each sort for the fuzz targets, always the same.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "proto/convert.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/stat_block.h"
#include "server/store/key.h"
#include "tests/fuzz/blocks.h"
#include "tests/support/random_batch.h"

namespace {

using namespace statcollect;

std::string Payload(const std::string& sealed) { return sealed.substr(1, sealed.size() - 5); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path root = argv[1];
  const auto write = [&](const char* target, const char* name, const std::string& bytes) {
    std::filesystem::create_directories(root / target);
    std::ofstream(root / target / name, std::ios::binary) << bytes;
  };
  const auto stored = [&](const char* name, int choice, const std::string& bytes) {
    write("stored_values", name, static_cast<char>(choice) + bytes);
  };
  const RecordBatch batch = testing::RandomBatch(1, 1, {.activations = 6, .steps = 2});
  SessionInfo info;
  info.run = "base";
  info.host = "host";
  info.config = {{"lr", "0.1"}, {"layers", "2"}};
  RankMeta rank;
  rank.durable_seq = 7;
  rank.first_step = 1;
  rank.dropped = {{"buffer_full", 3}};
  stored("attempt", 0, Payload(Encode(AttemptMeta{.id = 3, .number = 1, .run = "base", .world_size = 2})));
  stored("hello", 1, Payload(Encode(info)));
  stored("rank", 2, Payload(Encode(rank)));
  stored("activation", 3, Payload(Encode(batch.activations[0])));
  stored("layout", 4, Payload(Encode(batch.layouts[3])));
  stored("scalar", 5, Payload(Encode(batch.scalars[0])));
  stored("event", 6, Payload(Encode(batch.events[0])));
  stored("step", 7, Payload(Encode(batch.steps[0])));
  stored("key", 8, EncodeStatKey({.attempt = 1, .rank = 2, .step = 3, .activation = 4}));
  stored("steps", 9, "0-9,20,100-,every=10");
  std::vector<std::uint32_t> first_step;
  for (std::uint32_t i = 0; i < 6; ++i) first_step.push_back(i);
  BlockColumns block;
  block.Take(batch.stats, first_step, {});
  const EncodedBlock encoded = EncodeBlock(block, block.Digest());
  stored("block", 11, Payload(encoded.stats));
  const auto with_sums = [&](const char* name, const EncodedBlock& one) {
    const std::string stats = Payload(one.stats), sums = one.sums.empty() ? "" : Payload(one.sums);
    const std::string length = {static_cast<char>(stats.size() >> 8), static_cast<char>(stats.size())};
    stored(name, 10, length + stats + sums);
  };
  const BlockColumns frame = fuzz::Block(0), later = fuzz::Block(1);
  with_sums("whole", EncodeBlock(frame, frame.Digest()));
  with_sums("relative", EncodeBlock(later, later.Digest(), frame, 1));
  with_sums("same", EncodeBlock(frame, frame.Digest(), frame, 1));
  write("wire_batch", "batch", ToWire(batch, {}).SerializeAsString());
  write("wire_batch", "hello", ToWire(info, 1).SerializeAsString());
}
