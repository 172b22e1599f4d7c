package openai

// mediaKind returns what kind of media a content part or block is, "" for text and for what is not known.
func (d *doc) mediaKind(m *members) string {
	switch string(d.word(m[nType])) {
	case "image_url", "input_image", "image", "image_pil", "image_embeds":
		return "image"
	case "input_audio", "audio_url", "audio", "audio_embeds":
		return "audio"
	case "video_url", "input_video", "video":
		return "video"
	case "file", "input_file", "document":
		return "file"
	case "":
		return untypedMedia(m)
	}
	return ""
}

// untypedMedia is mediaKind for a part without type, which vLLM takes.
func untypedMedia(m *members) string {
	switch {
	case m[nImageURL].ok() || m[nImage].ok():
		return "image"
	case m[nInputAudio].ok() || m[nAudioURL].ok():
		return "audio"
	case m[nVideoURL].ok() || m[nVideo].ok():
		return "video"
	}
	return ""
}

// payloads are the members that may hold a media part's data or the place of it, the most exact first.
var payloads = []name{
	nImageURL, nImage, nImageEmbeds, nInputAudio, nAudioURL, nAudio, nAudioEmbeds, nVideoURL, nVideo, nFile, nSource,
	nData, nFileData, nURL, nFileURL, nFileID, nUUID,
}

// inlinePayloads are the same inside an object: image_url.url, source.data, file.file_id.
var inlinePayloads = []name{nData, nFileData, nURL, nFileURL, nFileID}

// firstOf returns the first of the names that has a value.
func (m *members) firstOf(names ...name) span {
	for _, n := range names {
		if m[n].ok() {
			return m[n]
		}
	}
	return span{}
}

// digestMedia hashes the data or URL of a media part: of a string its text, of an object the string that it holds, so
// that all APIs give one image one hash; of anything else its JSON.
func (w *walker) digestMedia(m *members) {
	v := m.firstOf(payloads...)
	if w.d.kind(v) == kindObject {
		var in members
		w.d.fill(v, &in)
		if inline := in.firstOf(inlinePayloads...); w.d.kind(inline) == kindString {
			w.digestInline(&in, inline)
			return
		}
	}
	w.value(v)
}

// digestInline hashes the string v of the object in. Base64 data with a media type is hashed as the data URL that
// engines make of it.
func (w *walker) digestInline(in *members, v span) {
	typed := v == in[nData] && w.d.kind(in[nMediaType]) == kindString
	if typed {
		w.puts("data:")
		w.text(in[nMediaType])
		w.puts(";base64,")
	}
	w.text(v)
}
