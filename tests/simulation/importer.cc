#include "tests/simulation/importer.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "agent/export/exporter.h"
#include "agent/export/wire.h"
#include "client/imports/spill_reader.h"
#include "proto/convert.h"

namespace statcollect::simulation {
namespace {

constexpr std::uint32_t kNumber = 1'000'000;  // in the place of an agent's
constexpr int kAttempts = 60;

}  // namespace

Status Importer::Run(const std::string& path, SessionId* session) {
  for (int attempt = 1;; ++attempt) {
    auto file = client::SpillReader::Open(path);
    if (!file.ok()) return *session = {}, file.status();
    *session = (*file)->session().session;
    network_.history.Of(*session).late = true;
    const Status sent = SendOnce(**file);

    if (sent.ok()) (void)unlink(path.c_str());
    if (sent.ok() || IsFatal(sent.code()) || sent.code() == Code::kOutOfRange ||
        attempt == kAttempts)
      return sent;
    file = Status(Code::kCancelled, "");  // somebody else may have it meanwhile
    threads_.Sleep(network_.Between(100, 5'000));
  }
}

Status Importer::SendOnce(client::SpillReader& file) {
  welcomed_ = ended_ = false;
  const auto connection =
      std::make_shared<Connection>(network_, file.session().session, kNumber, this);
  const auto end = [&] {
    connection->CancelByAgent();
    return connection->AwaitEnd();
  };
  SessionInfo info = file.session();
  info.if_exists = IfExists::kError;
  v1::AgentMessage hello;
  *hello.mutable_hello() = ToWire(info, file.first_seq());
  hello.mutable_hello()->set_late(true);
  if (connection->SendUp(hello.SerializeAsString())) connection->Connect();
  while (!welcomed_ && !ended_) threads_.Park(this);
  std::uint64_t next = file.first_seq();
  bool read = false;
  while (!ended_) {
    auto frame = file.Next();
    if (!frame.ok()) return (void)end(), frame.status();
    if (!*frame) {
      read = true;
      break;
    }
    EncodedBatch batch{
        .first_seq = next, .records = (*frame)->records, .bytes = std::move((*frame)->payload)};
    next += batch.records;
    if (!connection->SendUp(wire::EncodeBatch(batch))) return end();
  }
  while (durable_ + 1 < next && !ended_) {
    threads_.Park(this);
  }
  const bool whole = read && durable_ + 1 >= next;
  if (!whole || ended_ || !file.goodbye()) {
    const Status status = end();
    return whole && !file.goodbye() ? Status::Ok() : status;
  }
  if (connection->SendUp(wire::EncodeGoodbye(*file.goodbye()))) connection->CloseUp();
  while (!ended_) threads_.Park(this);
  return connection->AwaitEnd();
}

void Importer::OnWelcome(const Welcome& welcome) {
  welcomed_ = true;
  durable_ = welcome.durable_seq;
  threads_.Wake(this);
}

void Importer::OnAck(std::uint64_t durable_seq) {
  durable_ = durable_seq;
  threads_.Wake(this);
}

void Importer::OnEnd() {
  ended_ = true;
  threads_.Wake(this);
}

}  // namespace statcollect::simulation
