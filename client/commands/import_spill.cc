// statctl move import spill: sends what training processes left in their spill files, as their
// agents would have, under the same session and numbers: nothing arrives twice.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/import_spill.h"
#include "client/imports/ring_reader.h"
#include "client/imports/spill_reader.h"
#include "client/render/progress_bar.h"
#include "client/rpc/ingest_sender.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::chrono::milliseconds kSendPatience{30'000};
constexpr std::size_t kCaptureChunkBytes = std::size_t{512} << 10;  // as the agent's

// What became of one file.
struct Sent {
  std::string path, run;
  std::uint32_t rank = 0, attempt = 0;
  std::uint64_t bytes = 0, records = 0, already = 0;  // already: the collector had them
  std::string result;  // "sent", "would send", "in use", or what is wrong
  bool failed = false;
};

bool IsRing(const std::string& path) { return path.ends_with(ring::kSuffix); }

Result<std::vector<std::string>> FindFiles(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::regular) return std::vector<std::string>{path};
  if (kind != std::filesystem::file_type::directory)
    return Status(
        Code::kNotFound,
        "found no file or folder there; expected a spill or ring file, or the folder given as "
        "spill_dir");
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    const auto suffix = it->path().extension();
    if (suffix == spill::kSuffix || suffix == ring::kSuffix) files.push_back(it->path().string());
  }
  if (error) return Status(Code::kNotFound, error.message());
  if (files.empty())
    return Status(Code::kNotFound,
                  "found no file *.spill or *.ring in it; there is nothing to send");
  // What a ring adds to a session comes behind its other records.
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    return std::pair(IsRing(a), a) < std::pair(IsRing(b), b);
  });
  return files;
}

class SpillImporter {
 public:
  SpillImporter(Session& session, const ImportOptions& options)
      : session_(session),
        options_(options),
        attempted_("import spill " + Printable(options.path, 1000)) {}

  int Run() {
    if (const Status wrong = Check(); !wrong.ok()) return session_.Fail(attempted_, wrong);
    const auto files = FindFiles(options_.path);
    if (!files.ok()) return session_.Fail(attempted_, files.status());
    std::vector<Sent> all;
    for (const std::string& path : *files) {
      all.push_back({.path = path});
      const Status status = IsRing(path) ? SendRing(all.back()) : SendFile(all.back());
      if (status.code() == Code::kCancelled) return session_.Fail(attempted_, status);
      if (status.ok()) continue;
      all.back().result = status.message();
      all.back().failed = true;
    }
    if (!options_.silent) Report(all);
    const bool failed =
        std::any_of(all.begin(), all.end(), [](const Sent& sent) { return sent.failed; });
    return failed ? kExitNoAnswer : kExitSame;
  }

 private:
  Status Check() {
    if (!options_.run.empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options_.run));
    const auto policy = ParseIfExists(options_.if_exists);
    if (!policy)
      return {Code::kInvalidArgument, "--if-exists: '" + Printable(options_.if_exists) +
                                          "'; expected error, replace or append"};
    policy_ = *policy;
    return Status::Ok();
  }

  SenderOptions ToSession(std::uint64_t first_seq) {
    return {.address = session_.collector().address(),
            .token_file = session_.collector().token_file(),
            .project = session_.collector().project(),
            .tls = session_.collector().tls(),
            .patience = Patience(),
            .first_seq = first_seq,
            .late = true};
  }

  // The values of the last steps of a process that was killed, as captures behind what the
  // collector has of its session.
  Status SendRing(Sent& sent) {
    auto opened = RingReader::Open(sent.path);
    if (opened.status().code() == Code::kUnavailable) {
      sent.result = "in use: " + opened.status().message();
      return Status::Ok();
    }
    if (!opened.ok()) return opened.status();
    const RingReader& file = **opened;
    SessionInfo info = file.session();
    info.if_exists = policy_;
    if (!options_.run.empty()) info.run = options_.run;
    sent.run = info.run;
    sent.rank = info.rank;
    const std::filesystem::path spilled =
        std::filesystem::path(sent.path).replace_extension(spill::kSuffix);
    if (std::filesystem::exists(spilled) && !options_.dry_run) {
      return {Code::kFailedPrecondition,
              "its session's " + spilled.filename().string() +
                  " has earlier records; send that first, or the folder"};
    }
    if (options_.dry_run) {
      sent.records = file.tensors().size();
      sent.result = fmt::format("would send the values of {} tensors", sent.records);
      return Status::Ok();
    }
    STATCOLLECT_RETURN_IF_ERROR(session_.collector().Locate());
    std::uint64_t last_seq = 0;
    std::uint32_t known = 0;
    {
      IngestSender asked(ToSession(2), info);  // of an unknown session, it is refused
      STATCOLLECT_RETURN_IF_ERROR(asked.AwaitDurable());
      last_seq = asked.durable_before();
      known = asked.activations_before();
    }
    if (known == 0) {
      return {Code::kFailedPrecondition,
              "the collector has no tensor of its session; expected the collector that the "
              "training recorded to"};
    }
    IngestSender sender(ToSession(last_seq + 1), info);
    const auto cancel = session_.collector().OnCancel([&sender] { sender.Cancel(); });
    STATCOLLECT_RETURN_IF_ERROR(SendTensors(file, known, sender, sent));
    STATCOLLECT_RETURN_IF_ERROR(sender.AwaitDurable());
    sent.attempt = sender.attempt();
    if (!options_.keep_files && unlink(sent.path.c_str()) != 0)
      sent.result += "; the file could not be removed: " + std::generic_category().message(errno);
    return Status::Ok();
  }

  static Status SendTensors(const RingReader& file, std::uint32_t known, IngestSender& sender,
                            Sent& sent) {
    std::set<std::uint64_t> steps;
    std::uint64_t tensors = 0, unknown = 0;
    for (const ring::Slot& tensor : file.tensors()) {
      if (tensor.activation >= known) {
        ++unknown;
        continue;
      }
      STATCOLLECT_ASSIGN_OR_RETURN(const std::string values, file.Values(tensor));
      for (std::size_t at = 0; at == 0 || at < values.size(); at += kCaptureChunkBytes) {
        RecordBatch batch;
        batch.captures.push_back({.step = tensor.step,
                                  .activation = tensor.activation,
                                  .layout = tensor.layout,
                                  .elements = tensor.elements,
                                  .offset = static_cast<std::uint32_t>(at),
                                  .data = values.substr(at, kCaptureChunkBytes)});
        STATCOLLECT_RETURN_IF_ERROR(sender.Send(std::move(batch)));
        ++sent.records;
      }
      sent.bytes += values.size();
      steps.insert(tensor.step);
      ++tensors;
    }
    sent.result = fmt::format("sent the values of {}{}", Counted(tensors, "tensor"),
                              tensors == 0 ? "" : " of " + StepsNamed(steps));
    if (unknown > 0) sent.result += fmt::format("; {} that it never described", unknown);
    if (tensors == 0) return Status::Ok();
    RecordBatch told;
    told.events.push_back({.kind = "ring_written",
                           .step = *steps.rbegin(),
                           .text = "the process was killed; statctl " + sent.result,
                           .fields = {{"cause", "killed"},
                                      {"tensors", std::to_string(tensors)},
                                      {"bytes", std::to_string(sent.bytes)},
                                      {"missing", std::to_string(unknown)}}});
    ++sent.records;
    return sender.Send(std::move(told));
  }

  Status SendFile(Sent& sent) {
    auto opened = SpillReader::Open(sent.path);
    if (opened.status().code() == Code::kUnavailable) {
      sent.result = "in use: " + opened.status().message();
      return Status::Ok();
    }
    if (!opened.ok()) return opened.status();
    SpillReader& file = **opened;
    SessionInfo info = file.session();
    info.if_exists = policy_;
    if (!options_.run.empty()) info.run = options_.run;
    sent.run = info.run;
    sent.rank = info.rank;
    if (!options_.dry_run) STATCOLLECT_RETURN_IF_ERROR(session_.collector().Locate());
    IngestSender sender(ToSession(file.first_seq()), info);
    const auto cancel = session_.collector().OnCancel([&sender] { sender.Cancel(); });
    const Status read = SendFrames(file, sender, sent);
    if (options_.dry_run) {
      if (read.ok()) sent.result = "would send" + TornText(file);
      return read;
    }
    // Everything before the damaged part is still stored.
    Status stored = !read.ok() && read.code() != Code::kDataLoss ? read : sender.AwaitDurable();
    if (stored.ok() && read.ok() && file.goodbye())
      stored = sender.Finish(file.goodbye()->dropped_by_cause);
    sent.attempt = sender.attempt();
    if (sender.durable_before() >= file.first_seq())
      sent.already = std::min(sent.records, sender.durable_before() + 1 - file.first_seq());
    if (!stored.ok()) return stored;
    if (!read.ok()) {
      return {read.code(), fmt::format("{}; {} records before it are stored; those after it cannot "
                                       "be sent; the file is unchanged",
                                       read.message(), FormatCount(sent.records))};
    }
    sent.result = "sent" + TornText(file);
    if (!options_.keep_files && unlink(sent.path.c_str()) != 0)
      sent.result += "; the file could not be removed: " + std::generic_category().message(errno);
    return Status::Ok();
  }

  Status SendFrames(SpillReader& file, IngestSender& sender, Sent& sent) {
    ProgressBar progress(options_.dry_run ? "reading" : "sending",
                         session_.terminal().err && !session_.options().quiet);
    while (true) {
      auto frame = file.Next();
      if (!frame.ok()) return frame.status();
      if (!*frame) return Status::Ok();
      sent.bytes += (*frame)->payload.size();
      const std::uint64_t records = (*frame)->records;
      if (!options_.dry_run)
        STATCOLLECT_RETURN_IF_ERROR(sender.SendEncoded(records, std::move((*frame)->payload)));
      sent.records += records;
      progress.Draw(sent.bytes, file.bytes(), sent.records);
    }
  }

  static std::string TornText(const SpillReader& file) {
    return file.torn_bytes() == 0
               ? ""
               : fmt::format("; the last {} were incomplete when the process ended, and are lost",
                             FormatBytes(file.torn_bytes()));
  }

  std::chrono::milliseconds Patience() const {
    return session_.options().timeout_seconds > 0
               ? std::chrono::milliseconds(
                     static_cast<std::int64_t>(session_.options().timeout_seconds * 1000))
               : kSendPatience;
  }

  void Report(const std::vector<Sent>& all) {
    if (session_.options().format == Format::kJson) {
      nlohmann::ordered_json files = nlohmann::ordered_json::array();
      for (const Sent& sent : all) {
        files.push_back({{"path", Printable(sent.path, 4000)},
                         {"run", sent.run},
                         {"rank", sent.rank},
                         {"attempt", sent.attempt},
                         {"records", sent.records},
                         {"already_stored", sent.already},
                         {"bytes", sent.bytes},
                         {"ok", !sent.failed},
                         {"result", Printable(sent.result, 4000)}});
      }
      std::cout << DumpJson(nlohmann::ordered_json{{"dry_run", options_.dry_run}, {"files", files}})
                << '\n';
      return;
    }
    Table table({{"file"},
                 {"run"},
                 {"rank", Align::kRight},
                 {"records", Align::kRight},
                 {"already stored", Align::kRight},
                 {"result", Align::kLeft, true}});
    for (const Sent& sent : all) {
      table.AddRow({Printable(std::filesystem::path(sent.path).filename().string()), sent.run,
                    std::to_string(sent.rank), FormatCount(sent.records), FormatCount(sent.already),
                    Printable(sent.result, 1000)});
    }
    if (session_.options().format == Format::kCsv) return session_.PrintCsv(table);
    Page page;
    page.AddTable(table);
    session_.PrintPage(page);
  }

  Session& session_;
  const ImportOptions& options_;
  const std::string attempted_;
  IfExists policy_ = IfExists::kError;
};

}  // namespace

int ImportSpill(Session& session, const ImportOptions& options) {
  return SpillImporter(session, options).Run();
}

bool HoldsSpills(const std::string& path) {
  std::error_code error;
  return path.ends_with(spill::kSuffix) || IsRing(path) ||
         (std::filesystem::is_directory(path, error) && FindFiles(path).ok());
}

}  // namespace statcollect::client
