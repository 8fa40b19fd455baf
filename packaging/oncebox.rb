# The formula for Homebrew; packaging/parts.sh fills in what a release knows.
class Oncebox < Formula
  desc "Transactional outbox relay for PostgreSQL and NATS JetStream"
  homepage "@DOWNLOADS@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@DOWNLOADS@/oncebox-@VERSION@-aarch64-darwin.tar.gz"
      sha256 "@SHA256_aarch64-darwin@"
    end
    on_intel do
      url "@DOWNLOADS@/oncebox-@VERSION@-x86_64-darwin.tar.gz"
      sha256 "@SHA256_x86_64-darwin@"
    end
  end
  on_linux do
    on_arm do
      url "@DOWNLOADS@/oncebox-@VERSION@-aarch64-linux-gnu.tar.gz"
      sha256 "@SHA256_aarch64-linux-gnu@"
    end
    on_intel do
      url "@DOWNLOADS@/oncebox-@VERSION@-x86_64-linux-gnu.tar.gz"
      sha256 "@SHA256_x86_64-linux-gnu@"
    end
  end

  def install
    bin.install "bin/oncebox"
    man1.install "man/oncebox.1"
    bash_completion.install "completions/oncebox.bash" => "oncebox"
    zsh_completion.install "completions/oncebox.zsh" => "_oncebox"
    fish_completion.install "completions/oncebox.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/oncebox --version")
  end
end
