// make_corpus DIR: writes one valid input of each sort for the fuzz targets, always the same.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/spill_format.h"
#include "proto/convert.h"
#include "server/store/capture_requests.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/stat_block.h"
#include "server/store/key.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/query.pb.h"
#include "tests/fuzz/blocks.h"
#include "tests/fuzz/query_input.h"
#include "tests/support/random_batch.h"

namespace {

using namespace statcollect;

std::string Payload(const std::string& sealed) { return sealed.substr(1, sealed.size() - 5); }

// As an agent leaves them: closed, and killed while it wrote.
template <typename Write>
void WriteSpillFiles(const RecordBatch& batch, const SessionInfo& info, const Write& write) {
  v1::AgentMessage hello, goodbye;
  *hello.mutable_hello() = ToWire(info, 1);
  *goodbye.mutable_goodbye()->mutable_counters() = ToWire(AgentCounters{.produced = 9, .acked = 9});
  const auto frame = [](const std::string& payload, std::uint32_t records) {
    return spill::EncodeFrameHead({.payload_bytes = static_cast<std::uint32_t>(payload.size()),
                                   .records = records,
                                   .activations_after = 6,
                                   .layouts_after = 6,
                                   .payload_crc = Crc32c(payload)}) +
           payload;
  };
  v1::Records records;
  ToWire(batch, {}, &records);
  const std::string text = hello.SerializeAsString();
  std::string file = spill::EncodeHead(text);
  file += spill::EncodeMark({.offset = spill::kHeadBytes + text.size(), .seq = 7}) + text;
  file += frame(records.SerializeAsString(), static_cast<std::uint32_t>(batch.records()));
  const std::string whole = file + frame(goodbye.SerializeAsString(), 0);
  write("spill_file", "closed", '\0' + whole);
  write("spill_file", "killed", '\1' + file + frame("torn", 3).substr(0, 34));
  write("spill_file", "frame_head", '\2' + frame("", 3));
}

std::string Step(int choice, const google::protobuf::Message* message = nullptr) {
  std::string step(1, static_cast<char>(choice));
  if (message == nullptr) return step;
  const std::string bytes = message->SerializeAsString();
  return step + static_cast<char>(bytes.size() >> 8) + static_cast<char>(bytes.size()) + bytes;
}

// A session from hello to goodbye on one stream; a second stream of it in the midst; two ranks.
template <typename Write>
void WriteSessions(const SessionInfo& info, const Write& write) {
  enum { kMessage = 0, kAdmit = 2, kWritten = 4, kCancel = 8, kOpen = 10, kSecond = 1 };
  const RecordBatch first = testing::RandomBatch(1, 1, {.activations = 3, .steps = 1});
  const RecordBatch second = testing::RandomBatch(
      2, 1 + first.records(), {.activations = 3, .first_step = 1, .steps = 1, .define = false});
  v1::AgentMessage hello, other, one, two, goodbye;
  *hello.mutable_hello() = ToWire(info, 1);
  SessionInfo of_other = info;
  of_other.rank = 1;
  of_other.session = {9};
  *other.mutable_hello() = ToWire(of_other, 1);
  *one.mutable_batch() = ToWire(first, {});
  *two.mutable_batch() = ToWire(second, first.layouts);
  *goodbye.mutable_goodbye()->mutable_counters() = ToWire(AgentCounters{.produced = 9, .acked = 9});
  const std::string begin =
      Step(kMessage, &hello) + Step(kAdmit) + Step(kWritten) + Step(kMessage, &one);
  write("session_states", "whole",
        begin + Step(kMessage, &two) + Step(kMessage, &goodbye) + Step(kWritten));
  write("session_states", "again",
        begin + Step(kMessage + kSecond, &hello) + Step(kAdmit) + Step(kMessage + kSecond, &one) +
            Step(kMessage + kSecond, &two) + Step(kMessage, &two));
  write("session_states", "ranks",
        begin + Step(kMessage + kSecond, &other) + Step(kAdmit) + Step(kMessage + kSecond, &one) +
            Step(kCancel + kSecond) + Step(kOpen + kSecond) + Step(kMessage + kSecond, &other) +
            Step(kAdmit));
}

template <typename Write>
void WriteAnswers(const Write& write) {
  v1::CollectorMessage welcome, ack, directive;
  welcome.mutable_welcome()->set_protocol_version(1);
  welcome.mutable_welcome()->set_attempt(2);
  welcome.mutable_welcome()->set_durable_seq(3);
  welcome.mutable_welcome()->mutable_limits()->set_window_batches_max(8);
  welcome.mutable_welcome()->mutable_limits()->set_window_bytes_max(1 << 20);
  ack.mutable_ack()->set_durable_seq(2);
  directive.mutable_directive()->set_kind("steps");
  (*directive.mutable_directive()->mutable_arguments())["steps"] = "0-9";
  const auto frame = [](const v1::CollectorMessage& message) {
    const std::string bytes = message.SerializeAsString();
    return static_cast<char>(bytes.size()) + bytes;
  };
  const std::string submits(8, '\0');
  write("collector_message", "acknowledged", submits + frame(ack) + submits + frame(directive));
  write("collector_message", "resumed",
        submits + frame(ack) + frame(welcome) + submits + frame(ack) + frame(welcome));
}

template <typename Write>
void WriteTexts(const Write& write) {
  write("http_request", "query",
        "run_a=base&run_b=pr&ranks=0,1&ranks=4&all&tolerance=1e-3&steps=0-9");
  write("http_request", "body",
        R"({"run_a": "base", "run_b": "p\u00e9", "ranks": [0, "1"], "steps": null})");
  write("http_request", "series", "run=base&activation=layer.0&kind=output&rank=0");
  write("config_file", "all",
        "data-dir = \"/d\"\nlisten = \"127.0.0.1:7433\"\nhttp = \"off\"\ndurability = \"process\"\n"
        "retention = \"30d\"\nmax-disk = \"80%\"\n# comment\nquery-threads = 2\n");
  write("config_file", "lists", "listen = [\"a\", \"b\"]\n[section]\nx = 1\n");
}

std::string QueryOp(fuzz::Op op, std::initializer_list<int> bytes) {
  std::string text(1, static_cast<char>(op));
  for (const int byte : bytes) text += static_cast<char>(byte);
  return text;
}

// As QueryInput::Number reads it.
int QueryNumber(std::uint64_t number) {
  const auto end = std::find(fuzz::kEnds.begin(), fuzz::kEnds.end(), number);
  return number < 16 ? static_cast<int>(number)
                     : 0x40 + static_cast<int>(end - fuzz::kEnds.begin());
}

// Every question about two runs, whole and cut over ranks, with statistics in the first steps and
// around `last`, and a scalar at `last`; its fields left out, and set to something.
template <typename Write>
void WriteQuestions(const Write& write) {
  const auto world = [](fuzz::Op observe, std::uint64_t last) {
    std::string text;
    for (const int run : {0, 1}) {
      text += QueryOp(fuzz::Op::kLaunch, {run, 2});
      for (const int rank : {0, 1}) {
        for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, last - 1})
          text += QueryOp(observe, {rank, QueryNumber(step), 0, 0, 0, 0, 1, 2, 3 + run, 0, 0, 0});
        text += QueryOp(fuzz::Op::kScalar, {rank, QueryNumber(last), 0, 2 + run, 0});
      }
    }
    return text;
  };
  const auto& service = *v1::ListRunsRequest::descriptor()->file()->FindServiceByName("Query");
  for (int i = 0; i < service.method_count(); ++i) {
    const auto seed = [&](const char* of, const std::string& runs, const std::string& fields) {
      write("queries", (service.method(i)->name() + of).c_str(),
            runs + QueryOp(fuzz::Op::kAsk, {i, 3}) + fields);
    };
    seed("", world(fuzz::Op::kObserve, (std::uint64_t{1} << 63) - 1), "");
    seed("_of_parts", world(fuzz::Op::kPart, ~std::uint64_t{0}), {0, 1});
    std::string fields;
    for (int field = 0; field < 48; ++field)
      fields += static_cast<char>(field % 3 == 0 ? 1 : field * 37);
    seed("_with_fields", world(fuzz::Op::kObserve, ~std::uint64_t{0} - 1), fields);
  }
}

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
  stored("attempt", 0,
         Payload(Encode(AttemptMeta{.id = 3, .number = 1, .run = "base", .world_size = 2})));
  stored("hello", 1, Payload(Encode(info)));
  stored("rank", 2, Payload(Encode(rank)));
  stored("activation", 3, Payload(Encode(batch.activations[0])));
  stored("layout", 4, Payload(Encode(batch.layouts[3])));
  Layout zigzag{.id = 3, .dtype = DType::kBf16, .shape = {3, 4}};
  zigzag.placement = Placement{.global_shape = {3, 64},
                               .boxes = {0, 2, 3, 1, 0, 61, 3, 3},
                               .partial = true,
                               .piece = 1,
                               .pieces = 300};
  Layout flat = testing::MakeLayout(4, DType::kF32, {12});
  flat.placement = Placement{.global_shape = {5, 7}, .ranges = {7, 10, 26, 35}};
  stored("layout_zigzag", 4, Payload(Encode(zigzag)));
  stored("layout_flat", 4, Payload(Encode(flat)));
  stored("scalar", 5, Payload(Encode(batch.scalars[0])));
  stored("event", 6, Payload(Encode(batch.events[0])));
  stored("step", 7, Payload(Encode(batch.steps[0])));
  stored("key", 8, EncodeStatKey({.attempt = 1, .rank = 2, .step = 3, .activation = 4}));
  stored("steps", 9, "0-9,20,100-,every=10");
  stored("capture_head", 0xf0,
         Payload(Encode(CaptureHead{.layout = 1, .elements = 300, .bytes = 1200})));
  stored("capture_key", 0xf1,
         EncodeCaptureKey({.attempt = 1, .rank = 2, .part = 'd', .step = 3, .activation = 4}));
  stored(
      "capture_requests", 0xf2,
      EncodeCaptureRequests({{.id = 7,
                              .attempt = 3,
                              .ranks = {0, 1},
                              .asked_unix_nanos = 5,
                              .spec = *CaptureSpec::Parse("blocks.1.ln2@3:kind=output,path=0")}}));
  stored("capture_specs", 0xf3,
         "blocks.1.ln2@3; fc@0-9,every=3:kind=grad_output,path=0,call=1,bytes_max=4096");
  stored("exponents", 0xf4,
         Payload(Encode(ExponentRecord{
             .step = 7, .activation = 3, .layout = 2, .lowest = -25, .counts = {300, 0, 1}})));
  RecordBatch observed;
  testing::AddObservations(&observed, 7);
  stored("tokens", 0xf5, Payload(Encode(observed.tokens[0])));
  std::vector<std::uint32_t> first_step;
  for (std::uint32_t i = 0; i < 6; ++i) first_step.push_back(i);
  BlockColumns block;
  block.Take(batch.stats, first_step, {});
  const EncodedBlock encoded = EncodeBlock(block, block.Digest());
  stored("block", 11, Payload(encoded.stats));
  const auto with_sums = [&](const char* name, const EncodedBlock& one) {
    const std::string stats = Payload(one.stats), sums = one.sums.empty() ? "" : Payload(one.sums);
    const std::string length = {static_cast<char>(stats.size() >> 8),
                                static_cast<char>(stats.size())};
    stored(name, 10, length + stats + sums);
  };
  const BlockColumns frame = fuzz::Block(0), later = fuzz::Block(1);
  with_sums("whole", EncodeBlock(frame, frame.Digest()));
  with_sums("relative", EncodeBlock(later, later.Digest(), frame, 1));
  with_sums("same", EncodeBlock(frame, frame.Digest(), frame, 1));
  write("wire_batch", "batch", ToWire(batch, {}).SerializeAsString());
  RecordBatch captured = batch;
  captured.captures = {{.step = 0,
                        .activation = 0,
                        .layout = 1,
                        .elements = 16,
                        .offset = 8,
                        .data = std::string(120, 'v')}};
  RecordBatch placed = batch;
  zigzag.id = static_cast<std::uint32_t>(placed.layouts.size());
  flat.id = zigzag.id + 1;
  placed.layouts.insert(placed.layouts.end(), {zigzag, flat});
  write("wire_batch", "placements", ToWire(placed, {}).SerializeAsString());
  write("wire_batch", "captures", ToWire(captured, {}).SerializeAsString());
  write("wire_batch", "hello", ToWire(info, 1).SerializeAsString());
  WriteSpillFiles(batch, info, write);
  WriteSessions(info, write);
  WriteAnswers(write);
  WriteTexts(write);
  WriteQuestions(write);
}
