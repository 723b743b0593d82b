#include "client/commands/captures.h"

#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "common/capture_spec.h"
#include "common/choice.h"
#include "common/names.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

std::string KindText(int kind) { return EnumText(*v1::Kind_descriptor(), kind); }

// What a request asks for, in the words of CaptureSpec.
std::string WantedText(const v1::CaptureRequestRow& request) {
  CaptureSpec spec{.activation = request.activation(),
                   .micro_batch = request.micro_batch(),
                   .call = request.call()};
  if (request.kind() != v1::KIND_UNSPECIFIED) spec.kind = static_cast<Kind>(request.kind());
  if (request.has_output_path()) spec.output_path = request.output_path();
  spec.mode = ParseMode(request.mode()).value_or(Mode::kTrain);
  return spec.Describe();
}

Table RequestTable(const v1::ListCapturesResponse& response) {
  Table table({{"request", Align::kRight},
               {"step", Align::kRight},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"activation", Align::kLeft, true},
               {"state"},
               {"", Align::kLeft, true}});
  for (const v1::CaptureRequestRow& request : response.requests()) {
    for (const v1::CaptureRequestRank& rank : request.ranks()) {
      table.AddRow({std::to_string(request.request()), std::to_string(request.step()),
                    std::to_string(rank.rank()), WantedText(request), rank.state(), rank.why()});
    }
  }
  return table;
}

}  // namespace

Result<v1::Mode> ParseCaptureMode(const std::string& text) {
  if (text.empty()) return v1::MODE_UNSPECIFIED;
  if (const auto mode = ParseMode(text)) return static_cast<v1::Mode>(*mode);
  return Status(Code::kInvalidArgument, NotOneOf(text, {"train", "eval", "init"}));
}

std::string CaptureShapeText(const v1::CaptureRow& row) {
  const std::string whole = ShapeText(row.shape());
  if (row.elements() == row.numel()) return whole;
  return ShapeText(KeptShape(row)) + " of " + whole;
}

std::string CaptureText(const v1::CaptureRow& row) {
  std::string text = Printable(row.activation()) + " (" + KindText(row.kind());
  if (!row.output_path().empty()) text += ", path '" + Printable(row.output_path()) + "'";
  if (row.micro_batch() > 0) text += fmt::format(", micro-batch {}", row.micro_batch());
  if (row.call() > 0) text += fmt::format(", call {}", row.call());
  if (row.mode() != "train") text += ", " + Printable(row.mode());
  return text + fmt::format("), step {}, rank {}", row.step(), row.rank());
}

Table CaptureTable(const google::protobuf::RepeatedPtrField<v1::CaptureRow>& rows) {
  Table table({{"step", Align::kRight},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"activation", Align::kLeft, true},
               {"kind", Align::kLeft, false, Use::kIfItVaries},
               {"path", Align::kLeft, false, Use::kIfItVaries},
               {"mb", Align::kRight, false, Use::kIfItVaries},
               {"call", Align::kRight, false, Use::kIfItVaries},
               {"dtype", Align::kLeft, false, Use::kIfItVaries},
               {"shape", Align::kRight},
               {"size", Align::kRight, false, Use::kIfItFits},
               {"state", Align::kLeft, false, Use::kIfItVaries}});
  for (const v1::CaptureRow& row : rows) {
    table.AddRow({std::to_string(row.step()), std::to_string(row.rank()), row.activation(),
                  KindText(row.kind()), row.output_path(), std::to_string(row.micro_batch()),
                  std::to_string(row.call()), row.dtype(), CaptureShapeText(row),
                  FormatBytes(row.bytes()),
                  row.complete() ? "complete" : FormatBytes(row.bytes_stored()) + " so far"});
  }
  return table;
}

Result<TensorValues> FetchCapture(Session& session, const std::string& run,
                                  const CapturePlace& place, std::uint32_t rank) {
  const auto kind = ParseOneKind(place.kind);
  if (!kind.ok()) return kind.status();
  v1::ReadCaptureRequest request;
  request.set_run(run);
  request.set_activation(place.activation);
  request.set_step(place.step);
  request.set_rank(rank);
  request.set_kind(*kind);
  if (place.output_path) request.set_output_path(*place.output_path);
  request.set_micro_batch(place.micro_batch);
  request.set_call(place.call);
  request.set_mode(place.mode);
  v1::CaptureRow row;
  std::string bytes;
  const Status read =
      session.collector().ReadCapture(request, [&](v1::ReadCaptureResponse& message) {
        if (message.has_capture()) {
          row = std::move(*message.mutable_capture());
          bytes.reserve(row.bytes());
        }
        bytes += message.data();
      });
  if (!read.ok()) return read;
  return MakeTensorValues(std::move(row), std::move(bytes));
}

int ListCaptures(Session& session, const CapturesOptions& options) {
  const std::string attempted = "captures " + Printable(options.run);
  v1::ListCapturesRequest request;
  request.set_run(options.run);
  request.set_activation(options.activation);
  if (const Status wrong = Select(options.ranks, options.steps, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  if (const Status wrong = SelectKinds(options.kinds, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().ListCaptures(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] {
        Page page;
        if (response->records().empty()) {
          page.AddSentence(
              "Nothing captured in " + Printable(options.run) +
              (options.activation.empty() && options.steps.empty() ? "" : " that matches") +
              ". To capture, use statctl values get RUN ACTIVATION --step S in a running training, "
              "or "
              "STATAGENT_CAPTURES='ACTIVATION@S' for the next launch.");
        } else {
          page.AddTable(CaptureTable(response->records()));
        }
        if (!response->requests().empty()) {
          page.AddHeading("Requests to the newest launch");
          page.AddTable(RequestTable(*response));
        }
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
