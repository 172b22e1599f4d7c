package check

import (
	"context"
	"os"
	"path/filepath"
)

// sdkFolder is where the programs are that use the official clients.
func (h *Harness) sdkFolder() string { return filepath.Join(h.Root, "deploy", "checks", "sdk") }

// BuildGoSDK builds the program with the Go client and returns its binary. The first build takes 100 s of CPU.
func (h *Harness) BuildGoSDK(ctx context.Context) (binary string, err error) {
	binary = filepath.Join(h.Dir, "sdk-go")
	h.Say("builds the Go client; its first build takes 100 s of CPU")
	_, err = Command{Dir: h.sdkFolder(), Args: []string{"go", "build", "-o", binary, "."}}.Run(ctx)
	return binary, err
}

// InstallNodeSDK installs the npm client beside a copy of the programs that use it, and returns their folder.
func (h *Harness) InstallNodeSDK(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(h.Dir, "sdk-node")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{".npmrc", "package.json", "package-lock.json", "sdk.mjs", "retry.mjs"} {
		text, err := os.ReadFile(filepath.Join(h.sdkFolder(), name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	_, err = Command{Dir: dir, Args: []string{"npm", "ci", "--no-progress"}}.Run(ctx)
	return dir, err
}

// InstallPythonSDK installs the Python client and returns the interpreter that finds it.
func (h *Harness) InstallPythonSDK(ctx context.Context) (python string, err error) {
	dir := filepath.Join(h.Dir, "sdk-python")
	python = filepath.Join(dir, "bin", "python")
	if _, err := (Command{Args: []string{"python3", "-m", "venv", dir}}).Run(ctx); err != nil {
		return "", err
	}
	_, err = Command{Args: []string{python, "-m", "pip", "install", "-q", "-r", filepath.Join(h.sdkFolder(), "requirements.txt")}}.Run(ctx)
	return python, err
}
