// All queries, with any fields, about runs whose steps, ranks, calls, micro-batches and launches
// lie at the ends of their types. Every query ends; so it does where its client leaves while it
// reads, and then it reads no further.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "server/api/convert.h"
#include "server/api/convert/parts.h"
#include "server/api/heat_tiles.h"
#include "server/api/leaf_queries.h"
#include "server/query/captures/captures.h"
#include "server/query/query.h"
#include "server/query/records/records_reader.h"
#include "statcollect/v1/query.pb.h"
#include "tests/fuzz/query_input.h"
#include "tests/fuzz/query_world.h"

namespace {

using namespace statcollect;
using api::FromWire;
using api::ToWire;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using query::FromWire;
using query::QueryEngine;

constexpr std::size_t kOperationsMax = 48, kQuestionsMax = 4;
// With sanitizers, on a machine that does other things as well. libFuzzer's own limit is behind it.
constexpr std::chrono::seconds kQueryMax{8};
// A thread of a query notices a stop where it reads next.
constexpr std::uint64_t kThreadsOfAQuery = 16;

void Fail(const std::string& what) {
  std::fprintf(stderr, "queries_fuzz: %s\n", what.c_str());
  std::abort();
}

// --- a question's fields, whatever they are

void Fill(fuzz::QueryInput& in, Message& message);

std::string TextFor(const std::string& field, fuzz::QueryInput& in) {
  if (field.starts_with("run") || field == "noise" || field == "repeats") return in.Run();
  if (field == "steps") return in.Steps();
  if (field == "activation" || field == "input") return std::string(in.OneOf(fuzz::kTensors));
  if (field == "name") return std::string(in.OneOf(fuzz::kScalars));
  if (field == "output_path") return in.Flag() ? "0" : "";
  if (field == "map") return in.Flag() ? "x -> y\nlayer.* -> module.layer.*" : in.Text();
  if (field == "mode") return in.Flag() ? "train" : in.Text();
  return in.Text();
}

void FillOne(fuzz::QueryInput& in, const FieldDescriptor& field, Message& message) {
  const Reflection& to = *message.GetReflection();
  const auto put = [&](auto set, auto add, auto value) {
    field.is_repeated() ? (to.*add)(&message, &field, value) : (to.*set)(&message, &field, value);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return put(&Reflection::SetString, &Reflection::AddString, TextFor(field.name(), in));
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&Reflection::SetUInt64, &Reflection::AddUInt64, in.Number());
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(&Reflection::SetUInt32, &Reflection::AddUInt32, in.Small());
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&Reflection::SetInt64, &Reflection::AddInt64,
                 static_cast<std::int64_t>(in.Number()));
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&Reflection::SetInt32, &Reflection::AddInt32,
                 static_cast<std::int32_t>(in.Small()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(&Reflection::SetBool, &Reflection::AddBool, in.Flag());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(&Reflection::SetDouble, &Reflection::AddDouble, in.Real());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&Reflection::SetFloat, &Reflection::AddFloat, static_cast<float>(in.Real()));
    case FieldDescriptor::CPPTYPE_ENUM:
      return put(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
                 static_cast<int>(in.Byte() % (field.enum_type()->value_count() + 1)));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(in, field.is_repeated() ? *to.AddMessage(&message, &field)
                                          : *to.MutableMessage(&message, &field));
  }
}

// A run is always named; other fields may be left out.
void Fill(fuzz::QueryInput& in, Message& message) {
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool required = field.name().starts_with("run") && !field.is_repeated();
    for (int count = required ? 1 : in.Byte() % (field.is_repeated() ? 4 : 2); count > 0; --count)
      FillOne(in, field, message);
  }
}

// --- the questions

struct Asked {
  const QueryEngine& engine;
  api::HeatTiles& tiles;
  fuzz::QueryInput& in;
  const std::stop_token& stop;
};
using Question = std::function<Status(const Asked&)>;

// As server/api answers it.
template <typename WireRequest, typename Request, typename Response>
Question Leaf(query::Leaf<Request, Response>* leaf) {
  return [leaf](const Asked& asked) -> Status {
    WireRequest request;
    Fill(asked.in, request);
    const auto wanted = FromWire(request);
    if (!wanted.ok()) return wanted.status();
    Response response;
    return asked.engine.Ask(leaf, *wanted, response, asked.stop);
  };
}

template <typename Request, typename Report, typename Method>
Question WithProgress(Method method) {
  return [method](const Asked& asked) -> Status {
    Request request;
    Fill(asked.in, request);
    const auto wanted = FromWire(request);
    if (!wanted.ok()) return wanted.status();
    const auto answer = std::invoke(method, asked.engine, *wanted, query::OnProgress(), asked.stop);
    Report report;
    if (answer.ok()) ToWire(*answer, report);
    return answer.status();
  };
}

Status ReadRecords(const Asked& asked) {
  v1::ReadRecordsRequest request;
  Fill(asked.in, request);
  const auto wanted = FromWire(request);
  if (!wanted.ok()) return wanted.status();
  const auto take = [](const query::RecordsPart& part) {
    v1::ReadRecordsResponse message;
    ToWire(part, message);
    return Status::Ok();
  };
  return asked.engine.Stream(
      [&](const auto& in) { return query::ReadRecords(in.store, *wanted, take, in.stop); },
      asked.stop);
}

Status ReadCapture(const Asked& asked) {
  v1::ReadCaptureRequest request;
  Fill(asked.in, request);
  const auto wanted = FromWire(request);
  if (!wanted.ok()) return wanted.status();
  const auto take = [](const auto&) { return Status::Ok(); };
  return asked.engine.Stream(
      [&](const auto& in) { return query::ReadCapture(in.store, *wanted, take, take, in.stop); },
      asked.stop);
}

Status SaveNoise(const Asked& asked) {
  v1::SaveNoiseRequest request;
  Fill(asked.in, request);
  const auto wanted = FromWire(request);
  if (!wanted.ok()) return wanted.status();
  const auto saved = asked.engine.SaveNoise(*wanted, {}, asked.stop);
  v1::NoiseProfile report;
  if (saved.ok()) query::ToWire(wanted->run, *saved, report);
  return saved.status();
}

Status DeleteNoise(const Asked& asked) {
  v1::DeleteNoiseResponse response;
  return asked.engine.Ask(query::DeleteNoise, asked.in.Run(), response, asked.stop);
}

Status GetHeatMap(const Asked& asked) {
  v1::GetHeatMapRequest request;
  Fill(asked.in, request);
  return asked.tiles.Get(request, asked.stop).status();
}

Status ListRuns(const Asked& asked) {
  v1::ListRunsResponse response;
  return asked.engine.Ask(query::ListRuns, {}, response, asked.stop);
}

const std::map<std::string, Question>& Questions() {
  static const Question events = Leaf<v1::ListEventsRequest>(query::ListEvents);
  static const std::map<std::string, Question> all = {
#define STATCOLLECT_ASK_LEAF(Method, Response, pool) \
  {#Method, Leaf<v1::Method##Request>(query::Method)},
      STATCOLLECT_LEAF_QUERIES(STATCOLLECT_ASK_LEAF)
#undef STATCOLLECT_ASK_LEAF
          {"ListRuns", ListRuns},
      {"Diff", WithProgress<v1::DiffRequest, v1::DiffReport>(&QueryEngine::Diff)},
      {"FollowEvents", events},  // begins with the same list
      {"FollowRuns", ListRuns},  // likewise
      {"GetHeatMap", GetHeatMap},
      {"ReadRecords", ReadRecords},
      {"CheckRanks",
       WithProgress<v1::CheckRanksRequest, v1::RanksReport>(&QueryEngine::CheckRanks)},
      {"SaveNoise", SaveNoise},
      {"DeleteNoise", DeleteNoise},
      {"ReadCapture", ReadCapture},
  };
  return all;
}

// In the order of the proto, which new ones extend.
const google::protobuf::MethodDescriptor& QuestionOf(std::uint8_t byte) {
  static const auto& service =
      *v1::ListRunsRequest::descriptor()->file()->FindServiceByName("Query");
  return *service.method(byte % service.method_count());
}

// --- one of them

struct Ended {
  Status status;
  std::uint64_t reads = 0;
};

// `in`: its fields. `stop_at`: the read at which its client leaves; 0: it stays.
Ended Ask(fuzz::QueryWorld& world, const std::string& name, fuzz::QueryInput& in,
          std::uint64_t stop_at) {
  const auto found = Questions().find(name);
  if (found == Questions().end()) Fail("no question for Query." + name + "; add it to Questions()");
  std::stop_source stop;
  const std::uint64_t before = world.store().reads();
  world.store().OnRead([&](std::uint64_t reads) {
    if (stop_at > 0 && reads == before + stop_at) stop.request_stop();
  });
  const QueryEngine engine(world.store());
  api::HeatTiles tiles(engine);
  const std::stop_token token = stop.get_token();
  const auto began = std::chrono::steady_clock::now();
  Ended ended{.status = found->second({engine, tiles, in, token})};
  if (std::chrono::steady_clock::now() - began > kQueryMax) Fail(name + " took too long");
  world.store().OnRead({});
  ended.reads = world.store().reads() - before;
  if (stop.stop_requested() && ended.reads > stop_at + kThreadsOfAQuery)
    Fail(name + " read " + std::to_string(ended.reads - stop_at) +
         " times after its client had left");
  return ended;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::QueryInput in({data, size});
  fuzz::QueryWorld world;
  std::size_t questions = 0;
  for (std::size_t n = 0; n < kOperationsMax && questions < kQuestionsMax && !in.empty(); ++n) {
    const auto op = static_cast<fuzz::Op>(in.Byte() % fuzz::kOpCount);
    if (op != fuzz::Op::kAsk) {
      world.Do(op, in);
      continue;
    }
    ++questions;
    world.Commit();
    const std::string name = QuestionOf(in.Byte()).name();
    const std::uint64_t leaves = in.Number();
    fuzz::QueryInput again = in;
    const Ended whole = Ask(world, name, in, 0);
    if (whole.reads == 0) continue;
    const Ended left = Ask(world, name, again, 1 + leaves % whole.reads);
    const bool changes = name == "SaveNoise" || name == "DeleteNoise";
    if (!changes && left.status.code() != Code::kCancelled &&
        left.status.code() != whole.status.code())
      Fail(name + ", whose client had left, ended with: " + left.status.message());
  }
  return 0;
}
